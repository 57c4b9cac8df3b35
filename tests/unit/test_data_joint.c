/* Tables prepared together: levels, imputation and scaling of all of them, against values worked
 * out by hand; merged levels; fewer rows; the two ACS domains under WEFT_DATA. */
#include "ctx_fixture.h"
#include "weft/data.h"
#include "weft/file.h"
#include "weft/graph.h"

static void write_text(const char *name, const char *text) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(ctx, wf_write_file(ctx, path, text, strlen(text)));
}

static wf_data_desc here(const char *path) {
    wf_data_desc desc = wf_data_desc_default();
    desc.root = folder;
    desc.path = path;
    desc.test_fraction = 0.25;
    return desc;
}

/* Eight rows each, four of each class; every class gives one row to the test part. In b.csv the
 * columns stand otherwise. */
static void write_pair(void) {
    write_text("a.csv", "x,kind,y\n1,u,0\n1,u,0\n1,u,0\n1,u,0\n3,v,1\n3,v,1\n3,v,1\n3,v,1\n");
    write_text("b.csv", "kind,x,y\nw,5,0\nw,5,0\nw,5,0\nw,5,0\nu,7,1\nu,7,1\nu,7,1\nu,7,1\n");
}

static void both_tables_are_fitted_alike(void **state) {
    (void)state;
    write_pair();
    wf_data_desc one = here("a.csv"), two = here("b.csv");
    wf_dataset *a, *b;
    one.categorical = two.categorical = "kind";
    one.joint = "b.csv";
    two.joint = " a.csv , b.csv ";
    assert_ok(ctx, wf_dataset_open(ctx, &one, &a));
    assert_ok(ctx, wf_dataset_open(ctx, &two, &b));
    assert_string_equal(a->preparation, b->preparation);
    assert_int_equal(a->n_train, 6);
    assert_int_equal(b->n_test, 2);
    assert_int_equal(a->inputs, 4); /* x, kind=u, kind=v, kind=w */
    assert_string_equal(b->input_names[0], "x");
    assert_string_equal(a->input_names[3], "kind=w");
    /* Training rows of both: three each of 1, 3, 5, 7: mean 4, population deviation sqrt 5. */
    for (size_t i = 0; i < 6; i++) {
        double expected = (i < 3 ? 1 - 4 : 3 - 4) / sqrt(5);
        assert_close(a->x_train[4 * i], expected, 1e-6);
        assert_close(b->x_train[4 * i], expected + 4 / sqrt(5), 1e-6);
        assert_true(a->x_train[4 * i + 1] == (i < 3) && a->x_train[4 * i + 2] == (i >= 3));
        assert_true(b->x_train[4 * i + 1] == (i >= 3) && b->x_train[4 * i + 3] == (i < 3));
        assert_true(a->y_train[i] == (i >= 3) && b->y_train[i] == (i >= 3));
    }
    wf_dataset_free(a);
    wf_dataset_free(b);
}

static void levels_are_merged_before_fitting(void **state) {
    (void)state;
    write_pair();
    write_text("n.arff", "@attribute k {-1,-2,c d}\n@attribute y {p,q}\n@data\n"
                         "-1,p\n-1,p\n-2,p\n-2,q\n-1,q\n-2,q\n-1,p\n-1,q\n");
    wf_data_desc desc = here("a.csv");
    wf_dataset *data;
    desc.categorical = "kind";
    desc.joint = "b.csv";
    desc.merge = "kind: v, w -> other";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->inputs, 3);
    assert_string_equal(data->input_names[1], "kind=other");
    wf_dataset_free(data);
    desc = here("n.arff"); /* a minus sign is no arrow, and a new level is declared */
    desc.merge = "k: -2 -> both; k: -1->both";
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &data));
    assert_int_equal(data->inputs, 1);
    assert_string_equal(data->input_names[0], "k=both");
    wf_dataset_free(data);
}

static void fewer_rows_are_drawn_by_the_seed(void **state) {
    (void)state;
    static char text[8192];
    int used = snprintf(text, sizeof text, "x,y\n");
    for (int r = 0; r < 400; r++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%d,%d\n", r, r % 2);
    write_text("long.csv", text);
    wf_data_desc desc = here("long.csv");
    wf_dataset *a, *b, *c;
    desc.scale = WF_SCALE_NONE;
    desc.rows = 100;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &a));
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &b));
    desc.seed = 2;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &c));
    assert_int_equal(a->n_train + a->n_test, 100);
    assert_string_equal(a->fingerprint, b->fingerprint);
    assert_string_not_equal(a->fingerprint, c->fingerprint);
    double sum = 0;
    for (size_t i = 0; i < a->n_train; i++) {
        if (i > 0) assert_true(a->x_train[i] > a->x_train[i - 1]); /* the order of the table */
        assert_int_equal(a->y_train[i], (int)a->x_train[i] % 2);
        sum += a->x_train[i];
    }
    assert_close(sum / (double)a->n_train, 199.5, 45); /* four standard errors: from everywhere */
    wf_dataset_free(a);
    wf_dataset_free(b);
    wf_dataset_free(c);
}

static void mistakes_are_named(void **state) {
    (void)state;
    write_pair();
    write_text("c.csv", "x,z,y\n1,u,0\n2,u,1\n");
    write_text("one.csv", "x,kind,y\n1,u,0\n1,u,0\n2,u,0\n2,u,0\n");
    write_text("bad.csv", "x,kind,y\n1,u,0\n1,u,0\nq,u,1\n2,u,1\n");
    const struct {
        const char *path, *joint, *merge, *test_path;
        wf_status status;
        const char *words;
    } cases[] = {
        {"a.csv", "c.csv", NULL, NULL, WF_ERR_INPUT, "c.csv: there is no column 'kind'"},
        {"a.csv", "one.csv", NULL, NULL, WF_ERR_INPUT,
         "one.csv: class '1' of column 'y' has no row"},
        {"a.csv", "bad.csv", NULL, NULL, WF_ERR_INPUT,
         "bad.csv:4: column 1 (x): 'q' is not a number"},
        {"a.csv", "absent.csv", NULL, NULL, WF_ERR_INPUT, "absent.csv"},
        {"a.csv", "b.csv", NULL, "b.csv", WF_ERR_USAGE, "joint and test_path"},
        {"a.csv", NULL, "kind v -> u", NULL, WF_ERR_USAGE, "write COLUMN: LEVEL"},
        {"a.csv", NULL, "kind: v, u", NULL, WF_ERR_USAGE, "write COLUMN: LEVEL"},
        {"a.csv", NULL, "kind: v, -> u", NULL, WF_ERR_USAGE, "write COLUMN: LEVEL"},
        {"a.csv", NULL, "kind: v -> ", NULL, WF_ERR_USAGE, "write COLUMN: LEVEL"},
        {"a.csv", NULL, "kind: q -> u", NULL, WF_ERR_INPUT,
         "level 'q' of column 'kind', which does not occur"},
        {"a.csv", NULL, "kin: v -> u", NULL, WF_ERR_INPUT, "no such column"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        wf_data_desc desc = here(cases[i].path);
        wf_dataset *data = NULL;
        desc.categorical = "kind";
        desc.joint = cases[i].joint;
        desc.merge = cases[i].merge;
        desc.test_path = cases[i].test_path;
        assert_fails(ctx, wf_dataset_open(ctx, &desc, &data), cases[i].status, cases[i].words);
    }
    wf_data_desc builtin = wf_data_desc_default();
    wf_dataset *data;
    builtin.name = "moons";
    builtin.joint = "a.csv";
    assert_fails(ctx, wf_dataset_open(ctx, &builtin, &data), WF_ERR_USAGE, "not with a built-in");
}

/* Mean and deviation of one input over the training parts of both sets. */
static void pooled(const wf_dataset *a, const wf_dataset *b, int input, double *mean, double *std) {
    double sum = 0, squares = 0, n = (double)(a->n_train + b->n_train);
    for (int which = 0; which < 2; which++) {
        const wf_dataset *data = which == 0 ? a : b;
        for (size_t i = 0; i < data->n_train; i++) {
            double x = data->x_train[i * (size_t)data->inputs + (size_t)input];
            sum += x, squares += x * x;
        }
    }
    *mean = sum / n;
    *std = sqrt(squares / n - *mean * *mean);
}

static void acs_domains_share_35_inputs(void **state) {
    (void)state;
    const char *root = getenv("WEFT_DATA"), *ca_path = "acs-income/acsincome-2018-CA_1.csv.gz",
               *pr_path = "acs-income/acsincome-2018-PR_0.csv.gz";
    char full[1024];
    snprintf(full, sizeof full, "%s/%s", root != NULL ? root : "", ca_path);
    if (root == NULL || !wf_file_exists(full)) skip("WEFT_DATA names no folder with acs-income");
    wf_data_desc desc = wf_data_desc_default();
    wf_dataset *ca, *pr;
    desc.categorical = "COW, MAR, RELP, SEX, RAC1P";
    desc.drop = "OCCP, POBP";
    desc.merge = "RAC1P: 3.0, 4.0, 5.0 -> 2.0";
    desc.rows = 30000;
    desc.path = ca_path;
    desc.joint = pr_path;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &ca));
    desc.path = pr_path;
    desc.joint = ca_path;
    assert_ok(ctx, wf_dataset_open(ctx, &desc, &pr));
    assert_int_equal(ca->inputs, 35);
    assert_int_equal(pr->inputs, 35);
    assert_int_equal(ca->n_train, 24000);
    assert_int_equal(ca->n_test, 6000);
    assert_int_equal(pr->n_train, 7257);
    assert_int_equal(pr->n_test, 1814);
    assert_int_equal(ca->classes, 2);
    assert_string_equal(pr->class_names[1], "True");
    assert_string_equal(ca->preparation, pr->preparation);
    for (int i = 0; i < 35; i++) {
        double mean, std;
        assert_string_equal(ca->input_names[i], pr->input_names[i]);
        if (strchr(ca->input_names[i], '=') != NULL) continue;
        pooled(ca, pr, i, &mean, &std); /* AGEP, SCHL, WKHP */
        assert_close(mean, 0, 1e-5);
        assert_close(std, 1, 1e-5);
    }
    /* 962 of Puerto Rico's 9,071 people earn more than 50,000 dollars. */
    size_t rich = 0;
    for (size_t i = 0; i < pr->n_test; i++) rich += pr->y_test[i] == 1;
    assert_int_equal(rich, 192);
    wf_graph *graph;
    assert_ok(ctx, wf_graph_parse(ctx, "35-32-32-2", "relu", 0, &graph));
    assert_int_equal(graph->n_params, 2274);
    wf_graph_free(graph);
    wf_dataset_free(ca);
    wf_dataset_free(pr);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_tables_are_fitted_alike),
        cmocka_unit_test(levels_are_merged_before_fitting),
        cmocka_unit_test(fewer_rows_are_drawn_by_the_seed),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(acs_domains_share_35_inputs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
