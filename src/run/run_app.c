/* run_app: see run_app.h. */
#include "run/run_app.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

wf_status wf__run_fail(wf_run_app *app, wf_status status, const char *format, ...) {
    char sentence[sizeof app->sentence];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    memcpy(app->sentence, sentence, sizeof sentence);
    return status;
}

wf_status wf__run_resumable(wf_run_app *app, wf_status status) {
    if (status != WF_ERR_INTERRUPTED) return status;
    return wf__run_fail(app, status, "%s; the same command goes on from here",
                        app->sentence[0] != '\0' ? app->sentence : wf_last_error(app->ctx));
}

void wf__run_say(wf_run_app *app, const char *format, ...) {
    if (app->say == NULL) return;
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    app->say(app, line);
}

void wf__run_duration(double seconds, char out[32]) {
    if (seconds < 0) seconds = 0;
    if (seconds < 9.95) snprintf(out, 32, "%.1f s", seconds);
    else if (seconds < 99.5) snprintf(out, 32, "%.0f s", seconds);
    else if (seconds < 5970)
        snprintf(out, 32, "%d min %02d s", (int)(seconds + 0.5) / 60, (int)(seconds + 0.5) % 60);
    else snprintf(out, 32, "%d h %02d min", (int)(seconds / 3600), (int)(seconds / 60) % 60);
}

json_t *wf__run_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}
