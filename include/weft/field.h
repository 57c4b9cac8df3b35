/* weft/field.h: description of a velocity field: layout, widths, encoders, conditions. */
#ifndef WEFT_FIELD_H
#define WEFT_FIELD_H

#include "weft/graph.h"
#include "weft/settings.h"

WF_BEGIN_C

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/field.def"

typedef struct wf_field_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/field.def"
} wf_field_desc;
WF_API wf_field_desc wf_field_desc_default(void);
WF_API const wf_setting *wf_field_settings(void);

/* Trainable parameters, without building anything. */
WF_API wf_status wf_field_count(wf_ctx *ctx, const wf_field_desc *desc, size_t *out);

WF_END_C

#endif
