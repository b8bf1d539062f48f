/* Which layouts of prepared weights a program's convolutions would use. */
#include "schedule/compile.h"
#include "schedule/step_memory.h"

/* Columns of a node's value in a section: it is as much of the whole as its input is. */
static int64_t columns_in(const hy3d_schedule *s, const hy3d_section *section, int32_t node)
{
    const bool is_whole = section->kind == HY3D_SECTION_ALL || section->kind == HY3D_SECTION_PREFIX;
    const hy3d_size *const input = &s->sizes[is_whole || s->cut.node < 0 ? 0 : s->cut.node];
    return s->sizes[node].columns * section->size[2] / input->columns;
}

static hy3d_status first_of_node(const hy3d_context *context, const hy3d_schedule *s,
                                 const hy3d_section *section, const hy3d_step *step,
                                 hy3d_prepared *out)
{
    const int32_t source = s->nodes[step->node].source;
    const int64_t channels = s->sizes[source].channels;
    const int64_t size[2] = {step->read_rows[1] - step->read_rows[0],
                             columns_in(s, section, source)};
    const hy3d_conv3d_desc desc =
        hy3d__conv_desc(&s->request, s->program.candidate.on_host, step, channels, size);
    hy3d_conv3d_format format = HY3D_FORMAT_NONE;
    const hy3d_status status = hy3d_conv3d_choose_format(context, &desc, &format);
    if (status == HY3D_OK) {
        const size_t bytes = hy3d_conv3d_format_bytes(format, desc.out_channels,
                                                      desc.in_channels / desc.groups, desc.kernel);
        *out = (hy3d_prepared){.format = format, .bytes = (int64_t)bytes};
    }
    return status;
}

hy3d_status hy3d_schedule_prepared(const hy3d_context *context, const hy3d_schedule *s,
                                   hy3d_prepared *prepared_out)
{
    if (context == NULL || s == NULL || prepared_out == NULL || s->chosen < 0) {
        return HY3D_ERR_INVALID_ARGUMENT;
    }
    const hy3d_program *const program = &s->program;
    const hy3d_layer *const layers =
        hy3d__place_of(&s->request, program->candidate.on_host)->layers;
    for (int32_t i = 0; i < s->request.graph.count; i++) {
        prepared_out[i] = (hy3d_prepared){.format = HY3D_FORMAT_NONE, .bytes = -1};
    }
    hy3d_status status = HY3D_OK;
    for (int32_t i = 0; i < program->section_count && layers != NULL; i++) {
        const hy3d_section *const section = &program->sections[i];
        for (int32_t j = 0; j < section->steps && status == HY3D_OK; j++) {
            const hy3d_step *const step = &program->steps[section->first_step + j];
            hy3d_prepared *const known = &prepared_out[step->node];
            if (step->op == HY3D_STEP_CONV && layers[step->node].is_native && known->bytes < 0) {
                status = first_of_node(context, s, section, step, known);
            }
        }
    }
    for (int32_t i = 0; i < s->request.graph.count; i++) {
        prepared_out[i].bytes = prepared_out[i].bytes < 0 ? 0 : prepared_out[i].bytes;
    }
    return status;
}
