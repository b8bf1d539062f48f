/* Descriptions of convolutions: one multiplication of one value by one weight, and what is set. */
#include "vectors.h"

#include "hy3d/conv3d.h"

#define D(member, value) VECTOR_SET(hy3d_conv3d_desc, member, value)

/* Elements times 8 must stay below 2^63: the last good number of anything is 2^60 - 1. */
#define MOST (TWO(60) - 1)

/* Bad values, in each of the three axes. */
#define AXIS_RANGE(i)                                                                              \
    {"size 0", {D(in_size[i], 0)}, BAD}, {"size -1", {D(in_size[i], -1)}, BAD},                    \
    {"size least", {D(in_size[i], INT64_MIN)}, BAD}, {"size 2", {D(in_size[i], 2)}, OK},           \
    {"kernel 0", {D(kernel[i], 0)}, BAD}, {"kernel -1", {D(kernel[i], -1)}, BAD},                  \
    {"kernel least", {D(kernel[i], INT64_MIN)}, BAD},                                              \
    {"stride 0", {D(stride[i], 0)}, BAD}, {"stride -1", {D(stride[i], -1)}, BAD},                  \
    {"stride least", {D(stride[i], INT64_MIN)}, BAD},                                              \
    {"stride most", {D(stride[i], INT64_MAX)}, OK},                                                \
    {"dilation 0", {D(dilation[i], 0)}, BAD}, {"dilation -1", {D(dilation[i], -1)}, BAD},          \
    {"dilation least", {D(dilation[i], INT64_MIN)}, BAD},                                          \
    {"dilation most of one tap", {D(dilation[i], INT64_MAX)}, OK},                                 \
    {"before -1", {D(pad_before[i], -1)}, BAD}, {"after -1", {D(pad_after[i], -1)}, BAD},          \
    {"before crops a part", {D(pad_before[i], -4), D(in_size[i], 5)}, OK},                         \
    {"after crops a part", {D(pad_after[i], -4), D(in_size[i], 5)}, OK},                           \
    {"before crops all", {D(pad_before[i], -5), D(in_size[i], 5)}, BAD},                           \
    {"after crops all", {D(pad_after[i], -5), D(in_size[i], 5)}, BAD},                             \
    {"all but one", {D(pad_before[i], 1 - MOST), D(in_size[i], MOST)}, OK},                        \
    {"before least", {D(pad_before[i], INT64_MIN)}, BAD},                                          \
    {"after least", {D(pad_after[i], INT64_MIN)}, BAD},                                            \
    {"upsample -1", {D(upsample[i], -1)}, BAD},                                                    \
    {"upsample least", {D(upsample[i], INT64_MIN)}, BAD},                                          \
    {"upsample 0", {D(upsample[i], 0)}, OK}, {"upsample 1", {D(upsample[i], 1)}, OK},              \
    {"replicate", {D(pad_mode[i], 1)}, OK}, {"mode 2", {D(pad_mode[i], 2)}, BAD},                  \
    {"mode -1", {D(pad_mode[i], -1)}, BAD}, {"mode most", {D(pad_mode[i], INT32_MAX)}, BAD}

static const vector ranges[] = {AXIS_RANGE(0), AXIS_RANGE(1), AXIS_RANGE(2)};

/* Both sides of each limit, in each of the three axes. */
#define AXIS_LIMIT(i)                                                                              \
    {"last size", {D(in_size[i], MOST)}, OK}, {"size beyond", {D(in_size[i], MOST + 1)}, BIG},     \
    {"size most", {D(in_size[i], INT64_MAX)}, BIG},                                                \
    {"last padding", {D(pad_before[i], MOST - 1)}, OK},                                            \
    {"padding beyond", {D(pad_before[i], MOST)}, BIG},                                             \
    {"last padding after", {D(pad_after[i], MOST - 1)}, OK},                                       \
    {"padding after beyond", {D(pad_after[i], MOST)}, BIG},                                        \
    {"both crop all but one", {D(pad_before[i], -2), D(pad_after[i], -2), D(in_size[i], 5)}, OK},  \
    {"both crop all", {D(pad_before[i], -2), D(pad_after[i], -3), D(in_size[i], 5)}, SHAPE},       \
    {"both crop more", {D(pad_before[i], -4), D(pad_after[i], -4), D(in_size[i], 5)}, SHAPE},      \
    {"a crop and padding", {D(pad_before[i], -4), D(pad_after[i], 2), D(in_size[i], 5),            \
     D(kernel[i], 3)}, OK},                                                                        \
    {"padding most", {D(pad_before[i], INT64_MAX)}, BIG},                                          \
    {"padding after most", {D(pad_after[i], INT64_MAX)}, BIG},                                     \
    {"paddings that wrap", {D(pad_before[i], TWO(62)), D(pad_after[i], TWO(62))}, BIG},            \
    {"padding with a stride", {D(pad_before[i], TWO(62)), D(stride[i], 8)}, OK},                   \
    {"kernel fits", {D(in_size[i], 3), D(kernel[i], 3)}, OK},                                      \
    {"kernel does not", {D(in_size[i], 3), D(kernel[i], 4)}, SHAPE},                               \
    {"kernel fits by padding", {D(pad_after[i], 2), D(kernel[i], 3)}, OK},                         \
    {"kernel does not by one", {D(pad_after[i], 1), D(kernel[i], 3)}, SHAPE},                      \
    {"dilation fits", {D(in_size[i], 9), D(kernel[i], 2), D(dilation[i], 8)}, OK},                 \
    {"dilation does not", {D(in_size[i], 9), D(kernel[i], 2), D(dilation[i], 9)}, SHAPE},          \
    {"last kernel", {D(in_size[i], MOST), D(kernel[i], MOST)}, OK},                                \
    {"kernel most", {D(kernel[i], INT64_MAX)}, SHAPE},                                             \
    {"kernel most, twice", {D(kernel[i], INT64_MAX), D(dilation[i], 2)}, BIG},                     \
    {"extent INT64_MAX", {D(kernel[i], TWO(62)), D(dilation[i], 2)}, SHAPE},                       \
    {"extent beyond", {D(kernel[i], TWO(62) + 1), D(dilation[i], 2)}, BIG},                        \
    {"dilation most", {D(kernel[i], 2), D(dilation[i], INT64_MAX)}, BIG},                          \
    {"dilation most less one", {D(kernel[i], 2), D(dilation[i], INT64_MAX - 1)}, SHAPE},           \
    {"product of both", {D(kernel[i], TWO(32)), D(dilation[i], TWO(32))}, BIG},                    \
    {"last dilation", {D(in_size[i], MOST), D(kernel[i], 2), D(dilation[i], MOST - 1)}, OK},       \
    {"dilation beyond", {D(in_size[i], MOST), D(kernel[i], 2), D(dilation[i], MOST)}, SHAPE},      \
    {"upsample 2 of 1", {D(upsample[i], 2)}, SHAPE},                                               \
    {"upsample 2 of 2", {D(in_size[i], 2), D(upsample[i], 2)}, OK},                                \
    {"upsample 2 of 3", {D(in_size[i], 3), D(upsample[i], 2)}, SHAPE},                             \
    {"upsample most", {D(upsample[i], INT64_MAX)}, SHAPE},                                         \
    {"upsample last", {D(in_size[i], MOST), D(upsample[i], MOST)}, OK}

static const vector limits[] = {AXIS_LIMIT(0), AXIS_LIMIT(1), AXIS_LIMIT(2)};

static const vector fields[] = {
    {"as it is", {{0}}, OK},
    {"batch 0", {D(batch, 0)}, OK},
    {"batch -1", {D(batch, -1)}, BAD},
    {"batch least", {D(batch, INT64_MIN)}, BAD},
    {"last batch", {D(batch, MOST)}, OK},
    {"batch beyond", {D(batch, MOST + 1)}, BIG},
    {"batch most", {D(batch, INT64_MAX)}, BIG},
    {"batch 0 does not hide a size", {D(batch, 0), D(in_size[0], TWO(60))}, BIG},
    {"in channels 0", {D(in_channels, 0)}, BAD},
    {"in channels -1", {D(in_channels, -1)}, BAD},
    {"in channels least", {D(in_channels, INT64_MIN)}, BAD},
    {"last in channels", {D(in_channels, MOST)}, OK},
    {"in channels beyond", {D(in_channels, MOST + 1)}, BIG},
    {"in channels most", {D(in_channels, INT64_MAX)}, BIG},
    {"out channels 0", {D(out_channels, 0)}, BAD},
    {"out channels -1", {D(out_channels, -1)}, BAD},
    {"out channels least", {D(out_channels, INT64_MIN)}, BAD},
    {"last out channels", {D(out_channels, MOST)}, OK},
    {"out channels beyond", {D(out_channels, MOST + 1)}, BIG},
    {"out channels most", {D(out_channels, INT64_MAX)}, BIG},
    {"groups 0", {D(groups, 0)}, BAD},
    {"groups -1", {D(groups, -1)}, BAD},
    {"groups least", {D(groups, INT64_MIN)}, BAD},
    {"groups 2 of 1", {D(groups, 2)}, SHAPE},
    {"groups most", {D(groups, INT64_MAX)}, SHAPE},
    {"groups of 4 and 6", {D(groups, 2), D(in_channels, 4), D(out_channels, 6)}, OK},
    {"groups of 4 and 5", {D(groups, 2), D(in_channels, 4), D(out_channels, 5)}, SHAPE},
    {"groups of 5 and 4", {D(groups, 2), D(in_channels, 5), D(out_channels, 4)}, SHAPE},
    {"a channel a group", {D(groups, 999), D(in_channels, 999), D(out_channels, 999)}, OK},
    {"f64", {D(dtype, HY3D_F64)}, OK},
    {"f16", {D(dtype, HY3D_F16)}, OK},
    {"bf16", {D(dtype, HY3D_BF16)}, OK},
    {"dtype 4", {D(dtype, 4)}, BAD},
    {"dtype -1", {D(dtype, -1)}, BAD},
    {"dtype most", {D(dtype, INT32_MAX)}, BAD},
    {"fast", {D(accuracy, HY3D_FAST)}, OK},
    {"accuracy 2", {D(accuracy, 2)}, BAD},
    {"accuracy -1", {D(accuracy, -1)}, BAD},
    {"fast f64", {D(accuracy, HY3D_FAST), D(dtype, HY3D_F64)}, OK},
    {"threads most", {D(num_threads, UINT32_MAX)}, OK},
    {"pairs 2", {D(pairs, 2)}, OK},
    {"pairs 3", {D(pairs, 3)}, BAD},
    {"pairs most", {D(pairs, UINT32_MAX)}, BAD},
    {"pairs up-sampled", {D(pairs, 1), D(in_size[0], 2), D(upsample[0], 2)}, BAD},
    {"pairs up-sampled once", {D(pairs, 1), D(upsample[0], 1)}, OK},
    {"a limit beyond all memory", {D(workspace_limit_bytes, -1)}, OK},
    /* Products of two and three fields. */
    {"in elements fit", {D(in_size[0], TWO(30)), D(in_size[1], TWO(30) - 1)}, OK},
    {"in elements do not", {D(in_size[0], TWO(30)), D(in_size[1], TWO(30))}, BIG},
    {"three sizes fit",
     {D(in_size[0], TWO(20)), D(in_size[1], TWO(20)), D(in_size[2], TWO(20) - 1)},
     OK},
    {"three sizes do not", {D(in_size[0], TWO(20)), D(in_size[1], TWO(20)), D(in_size[2], TWO(20))},
     BIG},
    {"batch and channels fit", {D(batch, TWO(30)), D(in_channels, TWO(30) - 1)}, OK},
    {"batch and channels do not", {D(batch, TWO(30)), D(in_channels, TWO(30))}, BIG},
    {"batch and out channels fit", {D(batch, TWO(30) - 1), D(out_channels, TWO(30))}, OK},
    {"batch and out channels do not", {D(batch, TWO(30)), D(out_channels, TWO(30))}, BIG},
    {"weights fit", {D(in_channels, TWO(30)), D(out_channels, TWO(30) - 1)}, OK},
    {"weights do not", {D(in_channels, TWO(30)), D(out_channels, TWO(30))}, BIG},
    {"weights with taps do not",
     {D(in_channels, TWO(30)), D(out_channels, TWO(29)), D(kernel[2], 2), D(in_size[2], 2)},
     BIG},
    {"groups make weights few, not products",
     {D(in_channels, TWO(32)), D(out_channels, TWO(32)), D(groups, TWO(32))},
     BIG},
    {"the last products",
     {D(in_channels, TWO(31)), D(out_channels, TWO(31)), D(groups, TWO(31))},
     OK},
    {"out elements beyond by padding",
     {D(out_channels, TWO(30)), D(pad_before[0], TWO(30) - 1)},
     BIG},
    {"out elements that fit", {D(out_channels, TWO(30)), D(pad_before[0], TWO(30) - 2)}, OK},
};

/* Three questions about a description agree, and say nothing where they refuse. */
static hy3d_status ask(const vector *v)
{
    hy3d_context *const context = test_context("ref", 2);
    hy3d_conv3d_desc desc = {.dtype = HY3D_F32,
                             .batch = 1,
                             .in_channels = 1,
                             .out_channels = 1,
                             .groups = 1,
                             .in_size = {1, 1, 1},
                             .kernel = {1, 1, 1},
                             .stride = {1, 1, 1},
                             .dilation = {1, 1, 1}};
    int64_t out[3] = {-7, -7, -7};
    hy3d_conv3d_format format = 77;
    size_t workspace = 77, own = 77;

    vector_apply(v, &desc);
    const uint64_t live = test_live();
    const hy3d_status status = hy3d_conv3d_out_size(&desc, out);
    ck_assert_status(hy3d_conv3d_choose_format(context, &desc, &format), status);
    ck_assert_status(hy3d_conv3d_memory(context, &desc, false, &workspace, &own), status);
    const bool is_told = status == HY3D_OK;
    ck_assert_msg((out[0] > 0 && out[1] > 0 && out[2] > 0) == is_told &&
                      (format != 77) == is_told && (own != 77) == is_told,
                  "%s: written though refused, or the other way round", v->what);
    ck_assert_uint_eq(test_live(), live);
    hy3d_context_destroy(context);
    return status;
}

START_TEST(test_values_out_of_range)
{
    vectors_check(ranges, COUNT_OF(ranges), ask);
}
END_TEST

START_TEST(test_both_sides_of_each_limit)
{
    vectors_check(limits, COUNT_OF(limits), ask);
}
END_TEST

START_TEST(test_fields_and_products_of_them)
{
    vectors_check(fields, COUNT_OF(fields), ask);
}
END_TEST

int vectors_conv3d_desc(Suite *suite)
{
    TCase *const tests = tcase_create("conv3d descriptions");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, test_values_out_of_range);
    tcase_add_test(tests, test_both_sides_of_each_limit);
    tcase_add_test(tests, test_fields_and_products_of_them);
    suite_add_tcase(suite, tests);
    return (int)(COUNT_OF(ranges) + COUNT_OF(limits) + COUNT_OF(fields));
}
