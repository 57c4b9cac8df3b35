/* What fetching is made of, without a network: MD5 against RFC 1321, the survey's zip whole, cut
 * off and damaged. */
#include "comma_locale.h"
#include "ctx_fixture.h"
#include "base/md5.h"
#include "data/fetch.h"
#include "weft/file.h"

#include <zlib.h>

static void md5_is_that_of_the_rfc(void **state) {
    (void)state;
    const struct {
        const char *text, *digest;
    } cases[] = {
        {"", "d41d8cd98f00b204e9800998ecf8427e"},
        {"a", "0cc175b9c0f1b6a831c399e269772661"},
        {"abc", "900150983cd24fb0d6963f7d28e17f72"},
        {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
        {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
         "d174ab98d277d9f5a5611c2c9f419d9f"},
        {"12345678901234567890123456789012345678901234567890123456789012345678901234567890",
         "57edf4a22be3c955ac49da2e2107b67a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) { /* however it is handed over */
            wf_md5 hash;
            char out[33];
            wf_md5_start(&hash);
            wf_md5_add(&hash, cases[i].text, cut);
            wf_md5_add(&hash, cases[i].text + cut, strlen(cases[i].text) - cut);
            wf_md5_end(&hash, out);
            assert_string_equal(out, cases[i].digest);
        }
}

static const char header[] = "PWGTP,AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP\n";

static void put(uint8_t **at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) *(*at)++ = (uint8_t)(value >> 8 * i);
}

/* A zip of one member: local header, data, directory, end. */
static size_t make_zip(const char *text, bool deflated, uint8_t *out) {
    static uint8_t packed[8192];
    uLongf size = strlen(text);
    const uint8_t *data = (const uint8_t *)text;
    if (deflated) {
        z_stream stream = {.next_in = (Bytef *)(uintptr_t)text,
                           .avail_in = (uInt)strlen(text),
                           .next_out = packed,
                           .avail_out = sizeof packed};
        assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, -15, 8, Z_DEFAULT_STRATEGY), Z_OK);
        assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
        size = stream.total_out;
        deflateEnd(&stream);
        data = packed;
    }
    uint8_t *at = out;
    uint32_t method = deflated ? 8 : 0;
    put(&at, 0x04034b50, 4), put(&at, 20, 4), put(&at, method, 2), put(&at, 0, 8);
    put(&at, (uint32_t)size, 4), put(&at, (uint32_t)strlen(text), 4), put(&at, 5, 4);
    memcpy(at, "p.csv", 5), at += 5;
    memcpy(at, data, size), at += size;
    uint32_t directory = (uint32_t)(at - out);
    put(&at, 0x02014b50, 4), put(&at, 20, 4), put(&at, 0, 2), put(&at, method, 2);
    put(&at, 0, 4), put(&at, crc32(0, (const Bytef *)text, (uInt)strlen(text)), 4);
    put(&at, (uint32_t)size, 4), put(&at, (uint32_t)strlen(text), 4);
    put(&at, 5, 4), put(&at, 0, 4), put(&at, 0, 4), put(&at, 0, 2), put(&at, 0, 4);
    memcpy(at, "p.csv", 5), at += 5;
    uint32_t length = (uint32_t)(at - out) - directory;
    put(&at, 0x06054b50, 4), put(&at, 0, 4), put(&at, 1, 2), put(&at, 1, 2);
    put(&at, length, 4), put(&at, directory, 4), put(&at, 0, 2);
    return (size_t)(at - out);
}

static wf_status convert(const uint8_t *zip, size_t size, char **text) {
    char from[128], to[128];
    size_t rows, length;
    snprintf(from, sizeof from, "%s/in.zip", folder);
    snprintf(to, sizeof to, "%s/out.csv", folder);
    unlink(to);
    assert_ok(ctx, wf_write_file(ctx, from, zip, size));
    *text = NULL;
    wf_status status = wf__acs_income(ctx, from, to, &rows);
    assert_int_equal(status == WF_OK, wf_file_exists(to)); /* whole or not at all */
    if (status == WF_OK) assert_ok(ctx, wf_read_file(ctx, to, 1 << 20, text, &length));
    return status;
}

static void person_records_become_the_table(void **state) {
    (void)state;
    static uint8_t zip[16384];
    char text[1024], *out;
    snprintf(text, sizeof text, "%s%s", header,
             "2,30,1,20,1,0050,06,00,40,1,1,50001\n\n1,17,2,20,1,50,6,1,1,2,9,101");
    for (int deflated = 0; deflated < 2; deflated++) {
        size_t size = make_zip(text, deflated == 1, zip);
        char *damaged;
        assert_ok(ctx, convert(zip, size, &out));
        assert_string_equal(out, "AGEP,COW,SCHL,MAR,OCCP,POBP,RELP,WKHP,SEX,RAC1P,PINCP\n"
                                 "30.0,1.0,20.0,1.0,50.0,6.0,0.0,40.0,1.0,1.0,True\n"
                                 "17.0,2.0,20.0,1.0,50.0,6.0,1.0,1.0,2.0,9.0,False\n");
        for (size_t cut = 0; cut < size; cut++) { /* a part of a zip is none */
            assert_int_not_equal(convert(zip, cut, &damaged), WF_OK);
            assert_null(damaged);
        }
        for (size_t k = 0; k < size; k++) { /* one wrong byte: refused, or of no consequence */
            uint8_t kept = zip[k];
            zip[k] ^= 0x55;
            if (convert(zip, size, &damaged) == WF_OK) assert_string_equal(damaged, out);
            free(damaged);
            zip[k] = kept;
        }
        free(out);
    }
}

static void odd_records_are_refused(void **state) {
    (void)state;
    static uint8_t zip[16384];
    char text[1024], *out;
    snprintf(text, sizeof text, "%s2,thirty,1,20,1,50,6,0,40,1,1,5\n", header);
    assert_fails(ctx, convert(zip, make_zip(text, true, zip), &out), WF_ERR_INPUT,
                 "line 2: AGEP is 'thirty'");
    assert_fails(ctx, convert(zip, make_zip("AGEP,COW\n1,2\n", true, zip), &out), WF_ERR_INPUT,
                 "no column SCHL");
    snprintf(text, sizeof text, "%s2,16,1,20,1,50,6,0,40,1,1,50001\n", header);
    assert_fails(ctx, convert(zip, make_zip(text, true, zip), &out), WF_ERR_INPUT, "no person");
    /* Printed in full, each of these codes has 301 digits. */
    snprintf(text, sizeof text,
             "%s2,30,1e300,1e300,1e300,1e300,1e300,1e300,1e300,1e300,1e300,50001\n", header);
    assert_fails(ctx, convert(zip, make_zip(text, true, zip), &out), WF_ERR_INPUT,
                 "line 2: COW is '1e300', no number of the survey");
}

static void codes_have_a_point_in_any_locale(void **state) {
    (void)state;
    static uint8_t zip[16384];
    char text[1024], *out;
    snprintf(text, sizeof text, "%s2,30,1,20,1,0050,06,00,40,1,1,50001\n", header);
    if (!comma_locale_begin()) skip("no localedef");
    wf_status status = convert(zip, make_zip(text, true, zip), &out);
    comma_locale_end();
    assert_ok(ctx, status);
    assert_non_null(strstr(out, "30.0,1.0,20.0"));
    free(out);
}

static void bad_requests_are_refused_without_a_network(void **state) {
    (void)state;
    wf_fetched fetched;
    assert_fails(ctx, wf_data_fetch(ctx, "acs:2018", NULL, &fetched), WF_ERR_USAGE, "acs:2018:CA");
    wf_fetched_free(&fetched);
    assert_fails(ctx, wf_data_fetch(ctx, "openml:", NULL, &fetched), WF_ERR_USAGE,
                 "which data set");
    wf_fetched_free(&fetched);
    wf_fetched_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(md5_is_that_of_the_rfc),
        cmocka_unit_test(person_records_become_the_table),
        cmocka_unit_test(odd_records_are_refused),
        cmocka_unit_test(codes_have_a_point_in_any_locale),
        cmocka_unit_test(bad_requests_are_refused_without_a_network),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
