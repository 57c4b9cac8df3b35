/* version_curl: which libcurl this build was made with. */
#include "base/curl/download.h"

#include <curl/curlver.h>

const char *wf_download_description(void) { return "libcurl " LIBCURL_VERSION; }
