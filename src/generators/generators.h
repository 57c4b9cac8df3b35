/* generators: the library's own kinds of weft/generator.h. */
#pragma once

#include "weft/generator.h"

/* What a generated network must beat; the list ends with a NULL name. */
extern const wf_generator_kind wf__control_kinds[];

/* The flow generator of each field (models/field.h), made when first asked for; likewise ended. */
const wf_generator_kind *wf__flow_kinds(void);

/* Rivals that are fitted in phases (generators/phase_fit.h). */
extern const wf_generator_kind wf__sane_kde_kind, wf__sane_gauss_kind, wf__pdiff_kind;
