/* wf_read_file: any bytes, packed or not, are read or refused. */
#include "fuzz_file.h"

#include "weft/file.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

const char *fuzz_seed(size_t index, size_t *size) {
    static char packed[256];
    if (index > 1) return NULL;
    if (index == 1) {
        strcpy(packed, "plain text\n");
        *size = strlen(packed);
        return packed;
    }
    z_stream stream = {.next_out = (Bytef *)packed, .avail_out = sizeof packed};
    static char text[] = "a,b\n1,2\n1,2\n1,2\n1,2\n";
    if (deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        abort();
    stream.next_in = (Bytef *)text;
    stream.avail_in = sizeof text - 1;
    if (deflate(&stream, Z_FINISH) != Z_STREAM_END) abort();
    *size = stream.total_out;
    deflateEnd(&stream);
    return packed;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_file file;
    char *text;
    size_t length;
    if (!fuzz_file_open(&file, data, size)) return 0;
    if (wf_read_file(NULL, file.path, 1 << 20, &text, &length) == WF_OK) {
        if (length > 1 << 20 || text[length] != '\0') abort();
        free(text);
    } else if (text != NULL) abort();
    fuzz_file_close(&file);
    return 0;
}
