/* version_absent: builds without libcurl. */
#include "base/curl/download.h"

const char *wf_download_description(void) { return "none"; }
