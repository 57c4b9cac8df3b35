/* field_kinds: the kinds of fields that the library has. */
#pragma once

#include "models/field.h"

extern const wf_field_kind wf__field_gmn, wf__field_mlp, wf__field_dwf, wf__field_dwf_aligned,
    wf__field_dit;
