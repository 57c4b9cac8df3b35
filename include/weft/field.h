/* weft/field.h: description of a velocity field: layout, widths, encoders, conditions.
 * weft/weft.h says who owns what and what NULL means where a comment does not. */
#ifndef WEFT_FIELD_H
#define WEFT_FIELD_H

#include "weft/graph.h"
#include "weft/settings.h"

WF_BEGIN_C

/* What a generator can do (weft/generator.h). A field says so for the flow that is made of it. */
typedef enum wf_generator_trait {
    WF_GENERATOR_ANY_ARCHITECTURE = 1,  /* fits several architectures, samples ones never seen */
    WF_GENERATOR_CONDITIONS = 2,        /* tells collections apart by conditions */
    WF_GENERATOR_EQUIVARIANT = 4,       /* under relabelling of hidden units */
    WF_GENERATOR_WANTS_ALIGNED = 8,     /* expects a collection that weft align made */
    WF_GENERATOR_KEEPS_COLLECTION = 16, /* opening it takes the collection again */
    WF_GENERATOR_ON_GPU = 32, /* fits and samples on a GPU; else on the CPU whatever was asked */
    WF_GENERATOR_REFINES = 64 /* refines samples: wf_sample_desc's refine_cycles */
} wf_generator_trait;

#define NAME(constant, text) constant,
#define ENUM(type, values) typedef enum type { values } type;
#include "weft/field.def"

typedef struct wf_field_desc {
#define SETTING(type, member, ...) WF_MEMBER_##type member;
#include "weft/field.def"
} wf_field_desc;
/* The defaults: a struct that owns nothing. */
WF_API wf_field_desc wf_field_desc_default(void);
/* The table of its settings, for wf_settings_create(): a constant, never NULL. */
WF_API const wf_setting *wf_field_settings(void);

/* Trainable parameters, without building anything.
 * Returns WF_OK, WF_ERR_USAGE (a setting outside its range) or WF_ERR_MEMORY. */
WF_API wf_status wf_field_count(wf_ctx *ctx, const wf_field_desc *desc, size_t *out);

WF_END_C

#endif
