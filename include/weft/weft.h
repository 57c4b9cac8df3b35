/* weft/weft.h: the whole library in one include. Each header also stands alone. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "weft/align.h"
#include "weft/base.h"
#include "weft/bench.h"
#include "weft/comm.h"
#include "weft/data.h"
#include "weft/eval.h"
#include "weft/field.h"
#include "weft/file.h"
#include "weft/flow.h"
#include "weft/generator.h"
#include "weft/graph.h"
#include "weft/import.h"
#include "weft/plan.h"
#include "weft/recipe.h"
#include "weft/report.h"
#include "weft/rng.h"
#include "weft/run.h"
#include "weft/settings.h"
#include "weft/text.h"
#include "weft/zoo.h"

#endif
