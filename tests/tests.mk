# Rules of the tests and checks; the Makefile includes this file. A program is made from one file:
#   tests/unit/test_X.c, tests/prop/test_X.c   $(BUILD)/tests/unit/test_X; tests/run.sh runs it
#   tests/fuzz/fuzz_X.c                        $(BUILD)/tests/fuzz/fuzz_X
#   tests/unit/test_cuda_X.c                   $(BUILD)/emulated/test_cuda_X also, on the emulator

TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/unit/test_*.c tests/prop/test_*.c))
ORACLES := $(wildcard tests/oracle/test_*.py)
FUZZERS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/fuzz_*.c))
# Kernels of these modules run in tests without a GPU. Sanitizers do not know the emulator's fibers.
EMULATED := base tensor nn graph models flow generators
# Of the zoo all but the kernels that launch clusters by cudaLaunchKernelExC.
EMULATED_ZOO := $(patsubst %,$(BUILD)/emulated/zoo/cuda/%.o,zoo_block zoo_conv zoo_cuda \
                    zoo_paper_net zoo_start)
EMULATOR_OBJ := $(BUILD)/emulated/emulator.o $(BUILD)/emulated/hopper.o
FAKE_NCCL_OBJ := $(BUILD)/emulated/fake_nccl.o
EMULATED_OBJ := $(EMULATOR_OBJ) $(FAKE_NCCL_OBJ) \
                $(patsubst src/%.cu,$(BUILD)/emulated/%.o,$(call cuda_sources,$(EMULATED)) \
                    $(wildcard src/base/nccl/*_nccl.cu)) \
                $(EMULATED_ZOO) $(BUILD)/emulated/zoo_mlp_absent.o
# The matching is emulated in its own test alone; elsewhere the host matches.
EMULATED_ALIGN := $(patsubst src/%.cu,$(BUILD)/emulated/%.o,$(call cuda_sources,align))
UNEMULATED_OBJ := $(filter-out $(EMULATED:%=$(BUILD)/src/%/cuda/%) $(BUILD)/src/zoo/cuda/% \
                    $(BUILD)/src/base/nccl/%,$(ABSENT_OBJ))
ifeq ($(SAN),)
emulated_test = $(1:%=$(BUILD)/emulated/test_cuda_%)
EMULATED_TESTS := $(call emulated_test,contexts convs execute field fit loops lstar match net \
                    nodes ops optim phases)
HOPPER_TESTS := $(call emulated_test,instructions edge_benchmark node_benchmark)
EMULATED_TESTS += $(HOPPER_TESTS) $(BUILD)/emulated/test_cuda_ops_90a
EMULATED_PROGRAM := $(BUILD)/emulated/weft
endif

.PHONY: test test-programs test-docs test-oracle test-threads fuzz fuzz-targets fuzz-smoke chaos \
        chaos-long chaos-full claims layering formatting check check-full

TEST_FLAGS = $(CPPFLAGS) -Itests $(CFLAGS) -Wno-missing-prototypes
$(TESTS:%=%.o) $(EMULATED_TESTS) $(EMULATED_OBJ): | need-test
# Objects of their own, so that the compiler cache knows them.
.SECONDARY: $(TESTS:%=%.o)
$(BUILD)/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(call quiet,CC,$<)$(CCACHE) $(CC) $(TEST_FLAGS) -MMD -MP -c $< -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libweft.a
	$(call quiet,TEST,$@)$(CC) $(CFLAGS) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -lcmocka \
	    $(LIBS) -o $@

# The program with generators of its own; its lines of progress.
$(BUILD)/tests/unit/test_generators $(BUILD)/tests/unit/test_progress: \
    $(filter-out %/main.o,$(CLI_OBJ))

# The .cu files as C++ (tests/emulator): preprocessed, launches and PTX translated, compiled.
EMULATED_FLAGS := -std=c++17 -Wall -Wno-unknown-pragmas $(WERROR) -g1
define emulate
	@mkdir -p $(@D)
	$(call quiet,EMU,$<)$(CXX) $(CPPFLAGS) -std=c++17 -D__CUDACC__ -Itests/emulator -include ptx.h \
	    -MMD -MP -MF $(@:.o=.d) -MT $@ -E -x c++ $< -o $(@:.o=.cu) && \
	tests/emulator/translate.py <$(@:.o=.cu) >$(@:.o=.ii) && \
	$(CCACHE) $(CXX) $(EMULATED_FLAGS) -O1 -c $(@:.o=.ii) -o $@
endef
$(BUILD)/emulated/%.o: src/%.cu tests/emulator/translate.py
	$(emulate)
$(BUILD)/emulated/zoo_mlp_absent.o: tests/emulator/zoo_mlp_absent.cpp tests/emulator/translate.py
	$(emulate)
# Programs of one .cu file that use instructions of sm_90a.
$(BUILD)/emulated/test_cuda_instructions.o: tests/emulator/test_instructions.cu \
                                            tests/emulator/translate.py
	$(emulate)
$(BUILD)/emulated/test_cuda_%_benchmark.o: bench/%_benchmark.cu tests/emulator/translate.py
	$(emulate)
# Kernels of src/ that use wgmma, as for sm_90a: test_cuda_ops_90a has these in place of the others.
WGMMA_SRC := $(wildcard src/models/cuda/gmn_lean/*.cu src/models/cuda/gmn_lstar/*.cu) \
             src/models/cuda/gmn_edges/edge_weight_gradients.cu \
             src/tensor/cuda/row_products/many_rows.cu
WGMMA_OBJ := $(WGMMA_SRC:src/%.cu=$(BUILD)/emulated/sm_90a/%.o)
$(WGMMA_OBJ): CPPFLAGS += -D__CUDA_ARCH_FEAT_SM90_ALL
$(WGMMA_OBJ): $(BUILD)/emulated/sm_90a/%.o: src/%.cu tests/emulator/translate.py
	$(emulate)
$(BUILD)/emulated/test_cuda_ops_90a: $(BUILD)/tests/unit/test_cuda_ops.o $(CPU_OBJ) \
    $(UNEMULATED_OBJ) $(filter-out $(WGMMA_SRC:src/%.cu=$(BUILD)/emulated/%.o),$(EMULATED_OBJ)) \
    $(WGMMA_OBJ)
	$(call quiet,TEST,$@)$(CC) $(CFLAGS) $(LDFLAGS) $^ -lcmocka $(LDLIBS) -lstdc++ -o $@
$(HOPPER_TESTS): %: %.o $(EMULATOR_OBJ)
	$(call quiet,TEST,$@)$(CXX) $^ -pthread -o $@

$(EMULATOR_OBJ) $(FAKE_NCCL_OBJ): $(BUILD)/emulated/%.o: tests/emulator/%.cpp \
        $(wildcard tests/emulator/*.h)
	@mkdir -p $(@D)
	$(call quiet,CXX,$<)$(CCACHE) $(CXX) $(EMULATED_FLAGS) -Wextra -Wshadow -O3 -Itests/emulator \
	    -c $< -o $@

define link_emulated
	@mkdir -p $(@D)
	$(call quiet,TEST,$@)$(CC) $(CFLAGS) $(LDFLAGS) $^ -lcmocka $(LDLIBS) -lstdc++ -o $@
endef
$(BUILD)/emulated/test_%: $(BUILD)/tests/unit/test_%.o $(CPU_OBJ) $(UNEMULATED_OBJ) $(EMULATED_OBJ)
	$(link_emulated)
$(BUILD)/emulated/test_cuda_match: $(BUILD)/tests/unit/test_cuda_match.o $(CPU_OBJ) \
        $(EMULATED_OBJ) $(EMULATED_ALIGN) $(filter-out $(BUILD)/src/align/cuda/%,$(UNEMULATED_OBJ))
	$(link_emulated)

# The program itself, for tests of several ranks with a GPU each.
$(BUILD)/emulated/weft: $(CLI_OBJ) $(CPU_OBJ) $(UNEMULATED_OBJ) $(EMULATED_OBJ)
	@mkdir -p $(@D)
	$(call quiet,TEST,$@)$(CC) $(CFLAGS) $(LDFLAGS) $^ $(LDLIBS) -lstdc++ -o $@

test-programs: $(TESTS) $(EMULATED_TESTS) $(EMULATED_PROGRAM)

test: all test-programs ## unit, property and command-line tests; kernels without a GPU
	@BUILD=$(BUILD) tests/run.sh

.PHONY: test-python
test-python: $(BUILD)/libweft.so ## the Python package: types, wheel in an empty environment, tests
	@BUILD=$(BUILD) PYTHON=$(PYTHON) python/test.sh

test-docs: $(BUILD)/weft $(BUILD)/libweft.so ## the code blocks of the README and of docs
	@tools/need.sh python3-torch
	@BUILD=$(BUILD) PYTHON=$(PYTHON) tests/doc_blocks.py README.md CONTRIBUTING.md docs/*.md

test-oracle: all need-oracle ## comparisons with PyTorch, SciPy and scikit-learn
	@BUILD=$(BUILD) PYTHON=$(PYTHON) LIBS="$(LIBS)" tests/run.sh $(ORACLES:tests/%=%)

# Targets may call the whole program: weft_main is its main.
$(BUILD)/tests/fuzz/program.o: src/cli/main.c
	@mkdir -p $(@D)
	$(call quiet,CC,$<)$(CCACHE) $(CC) $(CPPFLAGS) $(CFLAGS) -Wno-missing-prototypes -Dmain=weft_main \
	    -MMD -MP -c $< -o $@
FUZZ_OBJ := $(BUILD)/tests/fuzz/program.o $(filter-out %/main.o,$(CLI_OBJ))

$(BUILD)/tests/fuzz/%: tests/fuzz/%.c tests/fuzz/driver.c $(FUZZ_OBJ) $(BUILD)/libweft.a \
                       $(wildcard tests/fuzz/*.h tests/torch_writer.h)
	@mkdir -p $(@D)
	$(call quiet,FUZZ,$@)$(CC) $(TEST_FLAGS) $(LDFLAGS) $(FUZZ_FLAGS) $(filter %.c %.o %.a,$^) \
	    $(LIBS) -o $@

fuzz-targets: $(FUZZERS)

fuzz-smoke: $(FUZZERS)
	@BUILD=$(BUILD) tests/fuzz/run.sh smoke

# libFuzzer where clang has it, else the driver's own mutations; MINUTES for all targets together.
MINUTES ?= 15
libfuzzer_test := int LLVMFuzzerTestOneInput(const char *d, long n) { return !d && n; }
has_libfuzzer = $(shell echo '$(libfuzzer_test)' | \
    clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null && echo yes)
LIBFUZZER_BUILD := CC=clang SAN=address,undefined OPT="-O1 -fsanitize=fuzzer-no-link" \
                   FUZZ_FLAGS="-fsanitize=fuzzer -DFUZZ_LIBFUZZER" BUILD=build/libfuzzer
OWN_FUZZ_BUILD := SAN=address,undefined OPT=-O1 BUILD=build/asan
fuzz: FUZZ_BUILD = $(if $(has_libfuzzer),$(LIBFUZZER_BUILD),$(OWN_FUZZ_BUILD))
fuzz: need-lib ## fuzz every reader for MINUTES=15 in all, with libFuzzer where clang has it
	+@$(again) $(FUZZ_BUILD) fuzz-targets
	@BUILD=$(lastword $(subst =, ,$(FUZZ_BUILD))) MINUTES=$(MINUTES) tests/fuzz/run.sh

# Every command under faults (tests/chaos/chaos.py); a fifth of the time goes to the fuzz targets.
SECONDS ?= 300
SEED ?= $(shell date +%Y%m%d)
CHAOS := $(BUILD)/chaos/shim.so
$(CHAOS): tests/chaos/shim.c
	@mkdir -p $(@D)
	$(call quiet,CC,$<)$(CC) -std=gnu11 -O2 -Wall -Wextra $(WERROR) -shared -fPIC $< -o $@ -ldl

chaos: $(BUILD)/weft-cpu $(CHAOS) $(FUZZERS) ## every command under faults, for SECONDS=300; SEED=N
	@$(PYTHON) tests/chaos/chaos.py --build $(BUILD) --seconds $(SECONDS) --seed $(SEED) \
	    --fuzz $(BUILD)

chaos-long: FUZZ_BUILD = $(if $(has_libfuzzer),$(LIBFUZZER_BUILD),$(OWN_FUZZ_BUILD))
chaos-long: $(BUILD)/weft-cpu $(CHAOS) ## the same for MINUTES=15, with sanitizers and libFuzzer
	+@$(again) $(OWN_FUZZ_BUILD) build/asan/weft
	+@$(again) $(FUZZ_BUILD) fuzz-targets
	@$(PYTHON) tests/chaos/chaos.py --build $(BUILD) --seconds $$(($(MINUTES) * 60)) \
	    --seed $(SEED) --sanitized build/asan/weft --fuzz $(lastword $(subst =, ,$(FUZZ_BUILD)))

chaos-full: $(BUILD)/weft-cpu $(CHAOS) ## every call fails, is killed, is cut off: hours
	@$(PYTHON) tests/chaos/chaos.py --build $(BUILD) --full $(BUILD)/chaos/tried.txt

layering claims: need-python

layering:
	@tools/layering.py
	@tools/header_comments.py

formatting: need-check
	@clang-format --dry-run --Werror $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh')
	@awk 'length > 100 { print FILENAME ":" FNR ": longer than 100 columns"; bad = 1 } \
	    END { exit bad }' $$(git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' '*.def' '*.py' '*.mk' \
	        Makefile)

claims:
	@tools/check_claims.py

# Programs that use threads; the rest would only be slower under the thread sanitizer.
THREAD_TESTS := unit/test_pool unit/test_match unit/test_draw unit/test_flow unit/test_field \
                prop/test_zoo_restart
test-threads: $(THREAD_TESTS:%=$(BUILD)/tests/%)
	@BUILD=$(BUILD) tests/run.sh $(THREAD_TESTS:%=%.c)

check: need-check layering formatting claims ## layering, formatting, warnings of gcc and clang
	@tools/layering.py --svg | cmp -s - docs/modules.svg || \
	    { echo "old picture: tools/layering.py --svg >docs/modules.svg" >&2; exit 1; }
	+@$(again) BUILD=build/gcc-strict WERROR=-Werror CC=gcc all
	+@$(again) BUILD=build/clang-strict WERROR=-Werror CC=clang NVCC= all # nvcc does not ask clang

check-full: need-test ## sanitizers, fuzz smoke, long tests, the report in a browser
	+@$(again) check
	+@$(again) BUILD=build/asan SAN=address,undefined OPT=-O1 test fuzz-smoke
	+@$(again) BUILD=build/tsan SAN=thread OPT=-O1 all test-threads
	@BUILD=build/tsan tests/cli/test_run.sh
	+@WEFT_LONG_TESTS=1 $(again) test
	@tests/browser.sh

-include $(TESTS:%=%.d) $(EMULATED_OBJ:.o=.d) $(EMULATED_TESTS:%=%.d) $(WGMMA_OBJ:.o=.d)
