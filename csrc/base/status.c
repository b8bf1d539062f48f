#include "hy3d/status.h"

const char *hy3d_status_name(hy3d_status status)
{
    switch (status) {
#define HY3D_STATUS_NAME(code, value, text)                                                        \
    case code:                                                                                     \
        return #code;
        HY3D_STATUS_LIST(HY3D_STATUS_NAME)
#undef HY3D_STATUS_NAME
    }
    return "unknown status";
}

const char *hy3d_status_text(hy3d_status status)
{
    switch (status) {
#define HY3D_STATUS_TEXT(code, value, text)                                                        \
    case code:                                                                                     \
        return text;
        HY3D_STATUS_LIST(HY3D_STATUS_TEXT)
#undef HY3D_STATUS_TEXT
    }
    return "a status code that this version of the library does not know";
}
