#include "base/utf8.h"

size_t wf_utf8_step(const char *text, size_t size) {
    const unsigned char *byte = (const unsigned char *)text;
    if (size == 0) return 0;
    if (byte[0] < 0x80) return 1;
    size_t length = byte[0] >= 0xf0 ? 4 : byte[0] >= 0xe0 ? 3 : 2;
    if (byte[0] < 0xc2 || byte[0] > 0xf4 || length > size) return 0;
    for (size_t i = 1; i < length; i++)
        if ((byte[i] & 0xc0) != 0x80) return 0;
    /* The second byte decides: overlong (e0, f0), surrogate (ed), beyond U+10FFFF (f4). */
    if (byte[0] == 0xe0 && byte[1] < 0xa0) return 0;
    if (byte[0] == 0xed && byte[1] > 0x9f) return 0;
    if (byte[0] == 0xf0 && byte[1] < 0x90) return 0;
    if (byte[0] == 0xf4 && byte[1] > 0x8f) return 0;
    return length;
}

size_t wf_utf8_check(const char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        size_t step = wf_utf8_step(text + at, size - at);
        if (step == 0) break;
        at += step;
    }
    return at;
}
