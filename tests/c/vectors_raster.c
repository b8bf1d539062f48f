#include "vectors.h"
int vectors_raster(Suite *suite)
{
    (void)suite;
    return 0;
}
