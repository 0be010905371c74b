// First and alone, so that a missing include in the header shows.
#include "tamis/tamis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "c_api/c_abi_cases.h"

static char failure[2048];

// Leaves the case with a text. Cases free nothing on failure: the program is about to end.
#define CHECK(condition)                                                                             \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      snprintf(failure, sizeof failure, "%s:%d: %s; last error: %s", __FILE__, __LINE__, #condition, \
               tamis_last_error());                                                                  \
      return failure;                                                                                \
    }                                                                                                \
  } while (0)

// Workspaces must be aligned to 64 bytes; one is enough for every case.
enum { kWorkspaceBytes = 8 << 20 };
static void* workspace(void) {
  static void* memory = NULL;
  if (memory == NULL) memory = aligned_alloc(64, kWorkspaceBytes);
  memset(memory, 0xA5, kWorkspaceBytes);
  return memory;
}

// cos/sin of `positions` positions at 32 frequencies of base 10000.
enum { kPositions = 16 };
static const char* fill_cos_sin(float* table) {
  double frequencies[32];
  const tamis_tensor view = tamis_tensor_2d(table, TAMIS_DTYPE_FLOAT32, kPositions, 64);
  CHECK(tamis_rope_frequencies(10000.0, NULL, 32, frequencies) == TAMIS_OK);
  CHECK(tamis_rope_table(frequencies, 32, &view) == TAMIS_OK);
  return NULL;
}

static int near(double got, double expected, double tolerance) { return fabs(got - expected) <= tolerance; }

const char* c_abi_topk(void) {
  // NaN ranks last, the tie at 2 goes to the lower position, the second row is a window of two.
  const float scores[2][6] = {{2.0F, NAN, 3.0F, -INFINITY, 2.0F, 2.0F}, {9.0F, 1.0F, 5.0F, 9.0F, 9.0F, 9.0F}};
  const int32_t row_starts[2] = {0, 1};
  const int32_t row_ends[2] = {6, 3};
  int32_t indices[2][3];
  float values[2][3];
  tamis_topk_certificate certificate[2];
  tamis_topk_algorithm algorithm = -1;
  const char* why = NULL;
  size_t bytes = (size_t)-1;
  tamis_topk_args args = {0};
  memset(indices, 0x55, sizeof indices);

  args.struct_size = sizeof args;
  args.scores = tamis_tensor_2d(scores, TAMIS_DTYPE_FLOAT32, 2, 6);
  args.row_starts = tamis_tensor_1d(row_starts, TAMIS_DTYPE_INT32, 2);
  args.row_ends = tamis_tensor_1d(row_ends, TAMIS_DTYPE_INT32, 2);
  args.k = 3;
  args.indices = tamis_tensor_2d(indices, TAMIS_DTYPE_INT32, 2, 3);
  args.values = tamis_tensor_2d(values, TAMIS_DTYPE_FLOAT32, 2, 3);
  args.certificate = tamis_tensor_2d(certificate, TAMIS_DTYPE_INT32, 2, 4);
  CHECK(tamis_topk_workspace_bytes(&args, &bytes) == TAMIS_OK);
  CHECK(bytes <= kWorkspaceBytes);
  args.workspace = workspace();
  args.workspace_bytes = bytes;
  CHECK(tamis_topk(&args) == TAMIS_OK);
  CHECK(indices[0][0] == 0 && indices[0][1] == 2 && indices[0][2] == 4);
  CHECK(values[0][0] == 2.0F && values[0][1] == 3.0F && values[0][2] == 2.0F);
  CHECK(certificate[0].threshold == 2.0F && certificate[0].num_above == 1 && certificate[0].num_equal == 3 &&
        certificate[0].num_equal_won == 2);
  CHECK(indices[1][0] == 0 && indices[1][1] == 1 && indices[1][2] == -1);
  CHECK(values[1][0] == 1.0F && values[1][1] == 5.0F && isnan(values[1][2]));

  args.order = TAMIS_TOPK_ORDER_BY_VALUE;
  args.algorithm = TAMIS_TOPK_ALGORITHM_SELECT;
  CHECK(tamis_topk_workspace_bytes(&args, &bytes) == TAMIS_OK);
  CHECK(bytes <= kWorkspaceBytes);
  args.workspace_bytes = bytes;
  CHECK(tamis_topk(&args) == TAMIS_OK);
  CHECK(indices[0][0] == 2 && indices[0][1] == 0 && indices[0][2] == 4);
  CHECK(tamis_topk_choose(&args, &algorithm, &why) == TAMIS_OK);
  CHECK(algorithm == TAMIS_TOPK_ALGORITHM_SELECT && why != NULL && why[0] != '\0');
  CHECK(tamis_topk_choose(&args, NULL, NULL) == TAMIS_OK);
  return NULL;
}

const char* c_abi_topk_mapping(void) {
  const float scores[1][4] = {{0.0F, 7.0F, 5.0F, 6.0F}};
  const int32_t page_table[1][2] = {{5, 3}};
  const int64_t ragged_offsets[1] = {1000};
  const int32_t seq_lens[2] = {2, 9};
  int32_t row_ends[4] = {-9, -9, -9, -9};
  int64_t indices[1][2] = {{-9, -9}};
  tamis_topk_args args = {0};
  args.struct_size = sizeof args;
  args.scores = tamis_tensor_2d(scores, TAMIS_DTYPE_FLOAT32, 1, 4);
  args.k = 2;
  args.indices = tamis_tensor_2d(indices, TAMIS_DTYPE_INT64, 1, 2);
  args.mapping = TAMIS_TOPK_MAPPING_PAGE_TABLE;
  args.page_table = tamis_tensor_2d(page_table, TAMIS_DTYPE_INT32, 1, 2);
  args.page_size = 2;
  args.workspace = workspace();
  args.workspace_bytes = kWorkspaceBytes;
  CHECK(tamis_topk(&args) == TAMIS_OK);
  CHECK(indices[0][0] == 5 * 2 + 1 && indices[0][1] == 3 * 2 + 1);

  args.mapping = TAMIS_TOPK_MAPPING_RAGGED;
  args.ragged_offsets = tamis_tensor_1d(ragged_offsets, TAMIS_DTYPE_INT64, 1);
  args.num_threads = 1;
  CHECK(tamis_topk(&args) == TAMIS_OK);
  CHECK(indices[0][0] == 1001 && indices[0][1] == 1003);

  // max(0, 2 - 2 + 1 + i) / 4 and max(0, 9 - 2 + 1 + i) / 4.
  CHECK(tamis_topk_row_ends(seq_lens, 2, 2, 4, row_ends) == TAMIS_OK);
  CHECK(row_ends[0] == 0 && row_ends[1] == 0 && row_ends[2] == 2 && row_ends[3] == 2);
  return NULL;
}

const char* c_abi_topk_support(void) {
  int32_t available = -1;
  const char* why = NULL;
  tamis_topk_algorithm algorithm;
  CHECK(tamis_topk_support(TAMIS_DEVICE_CPU, 0, TAMIS_TOPK_ALGORITHM_AUTO, &available, NULL) == TAMIS_OK);
  CHECK(available == 1);
  CHECK(tamis_topk_support(TAMIS_DEVICE_CPU, 0, TAMIS_TOPK_ALGORITHM_SELECT, &available, &why) == TAMIS_OK);
  CHECK(available == 1 && why != NULL && why[0] == '\0');
  CHECK(tamis_topk_support(TAMIS_DEVICE_CPU, 0, TAMIS_TOPK_ALGORITHM_GRID, &available, &why) == TAMIS_OK);
  CHECK(available == 0 && strcmp(why, "grid is no algorithm of the CPU") == 0);
  // With or without a GPU, each is available or has a reason.
  for (algorithm = TAMIS_TOPK_ALGORITHM_AUTO; algorithm <= TAMIS_TOPK_ALGORITHM_CUB; ++algorithm) {
    CHECK(tamis_topk_support(TAMIS_DEVICE_CUDA, 0, algorithm, &available, &why) == TAMIS_OK);
    CHECK(available == (why[0] == '\0'));
  }
  CHECK(tamis_topk_support(TAMIS_DEVICE_CUDA, 9999, TAMIS_TOPK_ALGORITHM_AUTO, &available, &why) == TAMIS_OK);
  CHECK(available == 0 && why[0] != '\0');
  return NULL;
}

// Writes two rows to slots 5 and 1 of a cache of 3 pages of 2 entries, and reads slots 1, -1 and 5 back.
static const char* cache_round_trip(tamis_cache_layout layout, int64_t head_dim) {
  enum { kPages = 3, kPageSize = 2 };
  const int64_t slots_in[2] = {5, 1};
  const int32_t slots_out[3] = {1, -1, 5};
  int64_t page_bytes = 0;
  int64_t entry_bytes = 0;
  int64_t i;
  float* rows = malloc((size_t)(2 * head_dim) * sizeof *rows);
  float* back = malloc((size_t)(3 * head_dim) * sizeof *back);
  void* memory = NULL;
  tamis_cache_write_args write = {0};
  tamis_cache_read_args read = {0};
  CHECK(tamis_cache_entry_bytes(layout, head_dim, &entry_bytes) == TAMIS_OK);
  CHECK(tamis_cache_page_bytes(layout, head_dim, kPageSize, &page_bytes) == TAMIS_OK);
  CHECK(page_bytes >= kPageSize * entry_bytes);
  memory = calloc(kPages, (size_t)page_bytes);
  for (i = 0; i < 2 * head_dim; ++i) rows[i] = (float)((i * 7) % 4 - 2);  // -2 .. 1: exact in every layout
  memset(back, 0xFF, (size_t)(3 * head_dim) * sizeof *back);

  write.struct_size = sizeof write;
  write.rows = tamis_tensor_2d(rows, TAMIS_DTYPE_FLOAT32, 2, head_dim);
  write.slots = tamis_tensor_1d(slots_in, TAMIS_DTYPE_INT64, 2);
  write.cache.data = memory;
  write.cache.layout = layout;
  write.cache.head_dim = head_dim;
  write.cache.num_pages = kPages;
  write.cache.page_size = kPageSize;
  write.cache.page_stride_bytes = page_bytes;
  CHECK(tamis_cache_write(&write) == TAMIS_OK);

  read.struct_size = sizeof read;
  read.cache = write.cache;
  read.slots = tamis_tensor_1d(slots_out, TAMIS_DTYPE_INT32, 3);
  read.rows = tamis_tensor_2d(back, TAMIS_DTYPE_FLOAT32, 3, head_dim);
  CHECK(tamis_cache_read(&read) == TAMIS_OK);
  for (i = 0; i < head_dim; ++i) {
    CHECK(back[i] == rows[head_dim + i]);
    CHECK(back[head_dim + i] == 0.0F);
    CHECK(back[2 * head_dim + i] == rows[i]);
  }
  free(rows);
  free(back);
  free(memory);
  return NULL;
}

const char* c_abi_cache(void) {
  static const struct {
    tamis_cache_layout layout;
    int64_t head_dim;
  } kCases[] = {
      {TAMIS_CACHE_FLOAT32, 40},        {TAMIS_CACHE_BFLOAT16, 40},     {TAMIS_CACHE_FP8_PER_TENSOR, 40},
      {TAMIS_CACHE_FP8_MLA_584, 512},   {TAMIS_CACHE_FP8_MLA_656, 576}, {TAMIS_CACHE_INDEXER_FP8, 128},
      {TAMIS_CACHE_INDEXER_MXFP4, 128},
  };
  int64_t bytes = 0;
  size_t i;
  for (i = 0; i < sizeof kCases / sizeof kCases[0]; ++i) {
    const char* failed = cache_round_trip(kCases[i].layout, kCases[i].head_dim);
    if (failed != NULL) return failed;
  }
  CHECK(tamis_cache_entry_bytes(TAMIS_CACHE_FP8_MLA_584, 512, &bytes) == TAMIS_OK && bytes == 584);
  CHECK(tamis_cache_entry_bytes(TAMIS_CACHE_FP8_MLA_584, 128, &bytes) == TAMIS_INVALID_ARGUMENT);
  return NULL;
}

const char* c_abi_index(void) {
  enum { kRows = 2, kHeads = 2, kKeys = 3, kDim = 128, kTopk = 2 };
  static float q[kRows][kHeads][kDim];
  static float index_q[kRows][kHeads][kDim];
  static float keys[kKeys][kDim];
  static float cos_sin[kPositions][64];
  const float weights[kRows][kHeads] = {{1.0F, 2.0F}, {1.0F, -1.0F}};
  const int64_t positions[kRows] = {0, 0};
  const int32_t row_ends[kRows] = {3, 2};
  const int32_t row_starts[kRows] = {1, 0};
  const int32_t pages[kRows][2] = {{6, 4}, {0, 1}};
  // weight * 128^-0.5 * 2^-0.5 = weight / 16, exact in fp32.
  float index_weights[kRows][kHeads];
  float logits[kRows][kKeys];
  int32_t indices[kRows][kTopk] = {{-9, -9}, {-9, -9}};
  float values[kRows][kTopk];
  size_t bytes = 0;
  tamis_index_query_args query = {0};
  tamis_index_logits_args score = {0};
  tamis_index_topk_args select = {0};
  const char* failed = fill_cos_sin(&cos_sin[0][0]);
  if (failed != NULL) return failed;

  // Head 0 looks at dim 0, head 1 at dim 1; key j holds (4j, -4, 0 ...) but key 2 holds (8, 12, 0 ...).
  q[0][0][0] = q[1][0][0] = 1.0F;
  q[0][1][1] = q[1][1][1] = 1.0F;
  keys[0][1] = keys[1][1] = -4.0F;
  keys[1][0] = 4.0F;
  keys[2][0] = 8.0F;
  keys[2][1] = 12.0F;

  query.struct_size = sizeof query;
  query.format = TAMIS_INDEX_FLOAT32;
  query.q = tamis_tensor_3d(q, TAMIS_DTYPE_FLOAT32, kRows, kHeads, kDim);
  query.weights = tamis_tensor_2d(weights, TAMIS_DTYPE_FLOAT32, kRows, kHeads);
  query.positions = tamis_tensor_1d(positions, TAMIS_DTYPE_INT64, kRows);
  query.cos_sin = tamis_tensor_2d(cos_sin, TAMIS_DTYPE_FLOAT32, kPositions, 64);
  query.index_q = tamis_tensor_3d(index_q, TAMIS_DTYPE_FLOAT32, kRows, kHeads, kDim);
  query.index_weights = tamis_tensor_2d(index_weights, TAMIS_DTYPE_FLOAT32, kRows, kHeads);
  CHECK(tamis_index_query(&query) == TAMIS_OK);
  CHECK(memcmp(q, index_q, sizeof q) == 0);  // position 0 rotates by nothing
  // The two square roots are rounded: 4 ulp of fp32 at 1/8.
  CHECK(near(index_weights[0][0], 0.0625, 6e-8) && near(index_weights[0][1], 0.125, 6e-8));
  CHECK(near(index_weights[1][1], -0.0625, 6e-8));

  score.struct_size = sizeof score;
  score.format = TAMIS_INDEX_FLOAT32;
  score.clean = 1;
  score.index_q = query.index_q;
  score.index_weights = query.index_weights;
  score.index_k.data = keys;
  score.index_k.layout = TAMIS_CACHE_FLOAT32;
  score.index_k.head_dim = kDim;
  score.index_k.num_pages = 1;
  score.index_k.page_size = kKeys;
  score.index_k.page_stride_bytes = sizeof keys;
  score.row_ends = tamis_tensor_1d(row_ends, TAMIS_DTYPE_INT32, kRows);
  score.max_columns = kKeys;
  score.logits = tamis_tensor_2d(logits, TAMIS_DTYPE_FLOAT32, kRows, kKeys);
  CHECK(tamis_index_logits(&score) == TAMIS_OK);
  // Row 0: 4j / 16 + relu(key[1]) / 8. Row 1 stops before key 2. Tolerance: values up to 2, the weights' error.
  CHECK(near(logits[0][0], 0.0, 0.0) && near(logits[0][1], 0.25, 1e-6) && near(logits[0][2], 2.0, 1e-6));
  CHECK(near(logits[1][0], 0.0, 0.0) && near(logits[1][1], 0.25, 1e-6) && logits[1][2] == -INFINITY);

  select.struct_size = sizeof select;
  select.format = score.format;
  select.order = TAMIS_TOPK_ORDER_BY_VALUE;
  select.index_q = score.index_q;
  select.index_weights = score.index_weights;
  select.index_k = score.index_k;
  select.row_ends = score.row_ends;
  select.max_columns = kKeys;
  select.k = kTopk;
  select.indices = tamis_tensor_2d(indices, TAMIS_DTYPE_INT32, kRows, kTopk);
  select.values = tamis_tensor_2d(values, TAMIS_DTYPE_FLOAT32, kRows, kTopk);
  CHECK(tamis_index_topk_workspace_bytes(&select, &bytes) == TAMIS_OK);
  CHECK(bytes <= kWorkspaceBytes);
  select.workspace = workspace();
  select.workspace_bytes = bytes;
  CHECK(tamis_index_topk(&select) == TAMIS_OK);
  CHECK(indices[0][0] == 2 && indices[0][1] == 1 && indices[1][0] == 1 && indices[1][1] == 0);
  CHECK(values[0][0] == logits[0][2] && values[0][1] == logits[0][1]);
  CHECK(values[1][0] == logits[1][1] && values[1][1] == logits[1][0]);

  // Row 0 starts at column 1: its columns 1 and 2 are entry 1 of page 6 and entry 0 of page 4.
  select.row_starts = tamis_tensor_1d(row_starts, TAMIS_DTYPE_INT32, kRows);
  select.page_starts = select.row_starts;
  select.mapping = TAMIS_TOPK_MAPPING_PAGE_TABLE;
  select.mapping_page_table = tamis_tensor_2d(pages, TAMIS_DTYPE_INT32, kRows, 2);
  select.mapping_page_size = 2;
  CHECK(tamis_index_topk(&select) == TAMIS_OK);
  CHECK(indices[0][0] == 8 && indices[0][1] == 13 && indices[1][0] == 1 && indices[1][1] == 0);
  // A caller compiled before the field was there has no page starts: positions 0 and 1 of the window are translated.
  select.struct_size = offsetof(tamis_index_topk_args, page_starts);
  memset(&select.page_starts, 0xEE, sizeof select.page_starts);
  CHECK(tamis_index_topk(&select) == TAMIS_OK);
  CHECK(indices[0][0] == 13 && indices[0][1] == 12 && indices[1][0] == 1 && indices[1][1] == 0);
  return NULL;
}

const char* c_abi_sparse_mla(void) {
  enum { kDim = 512, kKeys = 3 };
  static float q[2][1][kDim];  // zero: every valid key weighs the same
  static float keys[kKeys][kDim];
  static float extra_keys[1][kDim];
  static float out[2][1][kDim];
  const float attn_sink[1] = {0.0F};
  const int32_t topk_indices[2][3] = {{2, -1, 0}, {-1, kKeys, -7}};
  const int32_t extra_indices[2][1] = {{0}, {0}};
  const int32_t extra_lens[2] = {1, 0};
  float lse[2][1];
  float max_logits[2][1];
  size_t bytes = 0;
  int d;
  tamis_sparse_mla_args args = {0};
  for (d = 0; d < kDim; ++d) {
    keys[0][d] = 1.0F;
    keys[1][d] = NAN;  // not listed, so not read
    keys[2][d] = (float)d;
    extra_keys[0][d] = 3.0F;
  }
  memset(out, 0xFF, sizeof out);
  args.struct_size = sizeof args;
  args.q = tamis_tensor_3d(q, TAMIS_DTYPE_FLOAT32, 2, 1, kDim);
  args.cache.data = keys;
  args.cache.layout = TAMIS_CACHE_FLOAT32;
  args.cache.head_dim = kDim;
  args.cache.num_pages = 1;
  args.cache.page_size = kKeys;
  args.cache.page_stride_bytes = sizeof keys;
  args.topk_indices = tamis_tensor_2d(topk_indices, TAMIS_DTYPE_INT32, 2, 3);
  args.extra_cache = args.cache;
  args.extra_cache.data = extra_keys;
  args.extra_cache.page_size = 1;
  args.extra_cache.page_stride_bytes = sizeof extra_keys;
  args.extra_topk_indices = tamis_tensor_2d(extra_indices, TAMIS_DTYPE_INT32, 2, 1);
  args.extra_topk_lens = tamis_tensor_1d(extra_lens, TAMIS_DTYPE_INT32, 2);
  args.attn_sink = tamis_tensor_1d(attn_sink, TAMIS_DTYPE_FLOAT32, 1);
  args.out = tamis_tensor_3d(out, TAMIS_DTYPE_FLOAT32, 2, 1, kDim);
  args.lse = tamis_tensor_2d(lse, TAMIS_DTYPE_FLOAT32, 2, 1);
  args.max_logits = tamis_tensor_2d(max_logits, TAMIS_DTYPE_FLOAT32, 2, 1);
  CHECK(tamis_sparse_mla_workspace_bytes(&args, &bytes) == TAMIS_OK);
  CHECK(bytes <= kWorkspaceBytes);
  args.workspace = workspace();
  args.workspace_bytes = bytes;
  CHECK(tamis_sparse_mla(&args) == TAMIS_OK);
  // Three keys and a sink of logit 0: (1 + d + 3) / 4. 8 ulp of the largest value, 129.
  for (d = 0; d < kDim; ++d) CHECK(near(out[0][0][d], (4.0 + d) / 4.0, 129.0 * 8 * 6e-8));
  CHECK(near(lse[0][0], log(3.0), 1e-6) && max_logits[0][0] == 0.0F);
  for (d = 0; d < kDim; ++d) CHECK(out[1][0][d] == 0.0F);
  CHECK(lse[1][0] == -INFINITY && max_logits[1][0] == -INFINITY);
  return NULL;
}

const char* c_abi_compress(void) {
  // One request of 5 tokens at position 0, ratio 4 without overlap: token 3 completes entry 0, token 4 waits.
  enum { kTokens = 5, kRatio = 4, kDim = 128, kBlockSize = 4, kBlocks = 2 };
  static float kv[kTokens][kDim];
  static float gate[kTokens][kDim];  // zero, and so is ape: the softmax is a mean
  static float ape[kRatio][kDim];
  static float norm_weight[kDim];
  static float cos_sin[kPositions][64];
  static float state[kBlocks][kBlockSize][2 * kDim];
  static float cache[2][kDim];
  const int64_t positions[kTokens] = {0, 1, 2, 3, 4};
  const int32_t token_to_request[kTokens] = {0, 0, 0, 0, 0};
  const int32_t query_start_loc[2] = {0, kTokens};
  const int32_t state_table[1][2] = {{1, 0}};
  const int64_t state_slots[kTokens] = {4, 5, 6, 7, 0};
  const int64_t kv_slots[kTokens] = {-1, -1, -1, 1, -1};
  const int32_t none_listed[2] = {4, -1};
  const int32_t listed[2] = {3, -1};
  tamis_compress_counts counts = {100, 200};
  double mean[kDim];
  double mean_square = 0;
  size_t bytes = 0;
  int t, d;
  tamis_compress_args args = {0};
  const char* failed = fill_cos_sin(&cos_sin[0][0]);
  if (failed != NULL) return failed;
  memset(cache, 0, sizeof cache);
  memset(state, 0xFF, sizeof state);
  for (d = 0; d < kDim; ++d) {
    mean[d] = 0;
    norm_weight[d] = d % 2 == 0 ? 1.0F : 0.5F;
    for (t = 0; t < kTokens; ++t) {
      kv[t][d] = (float)((t * 5 + d * 3) % 11 - 5);
      if (t < kRatio) mean[d] += kv[t][d] / 4.0;
    }
    mean_square += mean[d] * mean[d] / kDim;
  }
  args.struct_size = sizeof args;
  args.compress_ratio = kRatio;
  args.kv = tamis_tensor_2d(kv, TAMIS_DTYPE_FLOAT32, kTokens, kDim);
  args.gate = tamis_tensor_2d(gate, TAMIS_DTYPE_FLOAT32, kTokens, kDim);
  args.ape = tamis_tensor_2d(ape, TAMIS_DTYPE_FLOAT32, kRatio, kDim);
  args.norm_weight = tamis_tensor_1d(norm_weight, TAMIS_DTYPE_FLOAT32, kDim);
  args.cos_sin = tamis_tensor_2d(cos_sin, TAMIS_DTYPE_FLOAT32, kPositions, 64);
  args.positions = tamis_tensor_1d(positions, TAMIS_DTYPE_INT64, kTokens);
  args.token_to_request = tamis_tensor_1d(token_to_request, TAMIS_DTYPE_INT32, kTokens);
  args.query_start_loc = tamis_tensor_1d(query_start_loc, TAMIS_DTYPE_INT32, 2);
  args.state = tamis_tensor_3d(state, TAMIS_DTYPE_FLOAT32, kBlocks, kBlockSize, 2 * kDim);
  args.state_table = tamis_tensor_2d(state_table, TAMIS_DTYPE_INT32, 1, 2);
  args.state_slots = tamis_tensor_1d(state_slots, TAMIS_DTYPE_INT64, kTokens);
  args.cache.data = cache;
  args.cache.layout = TAMIS_CACHE_FLOAT32;
  args.cache.head_dim = kDim;
  args.cache.num_pages = 1;
  args.cache.page_size = 2;
  args.cache.page_stride_bytes = sizeof cache;
  args.kv_slots = tamis_tensor_1d(kv_slots, TAMIS_DTYPE_INT64, kTokens);
  CHECK(tamis_compress_workspace_bytes(&args, &bytes) == TAMIS_OK);
  CHECK(bytes <= kWorkspaceBytes);
  args.workspace = workspace();
  args.workspace_bytes = bytes;

  // A plan of NONE saves the state and nothing else.
  args.plan = TAMIS_COMPRESS_PLAN_NONE;
  CHECK(tamis_compress(&args) == TAMIS_OK);
  for (d = 0; d < kDim; ++d) CHECK(cache[1][d] == 0.0F && state[1][3][d] == kv[3][d] && state[0][0][d] == kv[4][d]);

  // Token 3 is not in the list, so it completes nothing. What the calls did is added to the counts.
  args.plan = 0;
  args.counts = &counts;
  args.listed_tokens = tamis_tensor_1d(none_listed, TAMIS_DTYPE_INT32, 2);
  CHECK(tamis_compress(&args) == TAMIS_OK);
  for (d = 0; d < kDim; ++d) CHECK(cache[1][d] == 0.0F);
  args.plan = TAMIS_COMPRESS_PLAN_NONE;
  CHECK(tamis_compress(&args) == TAMIS_OK && tamis_compress(&args) == TAMIS_OK);
  CHECK(counts.pooled == 101 && counts.skipped == 202);

  // The zeroed plan is UNKNOWN, and the zeroed eps is 1e-6. Values are below 4: 16 ulp of that.
  args.plan = 0;
  args.listed_tokens = tamis_tensor_1d(listed, TAMIS_DTYPE_INT32, 2);
  CHECK(tamis_compress(&args) == TAMIS_OK);
  CHECK(counts.pooled == 102 && counts.skipped == 202);
  for (d = 0; d < kDim; ++d) {
    CHECK(near(cache[1][d], mean[d] / sqrt(mean_square + 1e-6) * norm_weight[d], 4.0 * 16 * 6e-8));
    CHECK(cache[0][d] == 0.0F);
  }

  // A call that fails counts nothing.
  args.algorithm = TAMIS_COMPRESS_ALGORITHM_TALL_WINDOW;
  CHECK(tamis_compress(&args) == TAMIS_INVALID_ARGUMENT);
  CHECK(strcmp(tamis_last_error(), "compress: algorithm is tall_window, on the CPU it must be auto") == 0);
  CHECK(counts.pooled == 102 && counts.skipped == 202);

  // A caller compiled before these fields were there has no list, no counts and no algorithm.
  args.struct_size = offsetof(tamis_compress_args, listed_tokens);
  memset(&args.listed_tokens, 0xEE, sizeof args - offsetof(tamis_compress_args, listed_tokens));
  memset(cache, 0, sizeof cache);
  CHECK(tamis_compress(&args) == TAMIS_OK);
  CHECK(near(cache[1][0], mean[0] / sqrt(mean_square + 1e-6), 4.0 * 16 * 6e-8));
  CHECK(counts.pooled == 102 && counts.skipped == 202);
  return NULL;
}

const char* c_abi_compress_step(void) {
  // Requests at positions 2 3 4 and 7 8, then a token of padding.
  enum { kTokens = 6, kCapacity = 3 };
  const int64_t positions[kTokens] = {2, 3, 4, 7, 8, -1};
  const int32_t token_to_request[kTokens] = {0, 0, 0, 1, 1, 1};
  const int32_t query_start_loc[3] = {0, 3, 6};
  int32_t by_four[kCapacity + 1] = {-9, -9, -9, -9};
  int32_t by_eight[kCapacity] = {-9, -9, -9};
  tamis_compress_list lists[2] = {{0}};
  tamis_compress_step_args args = {0};
  int64_t capacity = -1;
  int32_t capturing = -1;
  CHECK(tamis_compress_list_capacity(kTokens, 2, 4, &capacity) == TAMIS_OK && capacity == kCapacity);
  CHECK(tamis_compress_list_capacity(256, 256, 128, &capacity) == TAMIS_OK && capacity == 256);
  lists[0].compress_ratio = 4;
  lists[0].tokens = tamis_tensor_1d(by_four, TAMIS_DTYPE_INT32, kCapacity + 1);
  lists[1].compress_ratio = 8;
  lists[1].tokens = tamis_tensor_1d(by_eight, TAMIS_DTYPE_INT32, kCapacity);
  args.struct_size = sizeof args;
  args.positions = tamis_tensor_1d(positions, TAMIS_DTYPE_INT64, kTokens);
  args.token_to_request = tamis_tensor_1d(token_to_request, TAMIS_DTYPE_INT32, kTokens);
  args.query_start_loc = tamis_tensor_1d(query_start_loc, TAMIS_DTYPE_INT32, 3);
  CHECK(tamis_build_compress_step(&args) == TAMIS_OK);  // no lists: nothing to do
  CHECK(by_four[0] == -9);
  args.lists = lists;
  args.num_lists = 2;
  CHECK(tamis_build_compress_step(&args) == TAMIS_OK);
  CHECK(by_four[0] == 1 && by_four[1] == 3 && by_four[2] == -1 && by_four[3] == -1);
  CHECK(by_eight[0] == 3 && by_eight[1] == -1 && by_eight[2] == -1);

  CHECK(tamis_stream_is_capturing(TAMIS_DEVICE_CPU, 0, NULL, &capturing) == TAMIS_OK && capturing == 0);
  return NULL;
}

const char* c_abi_compress_plan(void) {
  const int64_t starts[2] = {0, 4};
  const int64_t later[2] = {1, 4};
  const int64_t query_lens[2] = {3, 3};
  tamis_compress_plan plan = -1;
  int64_t number = -1;
  CHECK(tamis_compress_plan_exact(starts, query_lens, 2, 4, 0, &plan) == TAMIS_OK && plan == TAMIS_COMPRESS_PLAN_NONE);
  CHECK(tamis_compress_plan_exact(later, query_lens, 2, 4, 0, &plan) == TAMIS_OK && plan == TAMIS_COMPRESS_PLAN_SOME);
  CHECK(tamis_compress_plan_exact(later, query_lens, 2, 4, 1, &plan) == TAMIS_OK &&
        plan == TAMIS_COMPRESS_PLAN_UNKNOWN);
  CHECK(tamis_compress_plan_bounds(starts, later, query_lens, 2, 4, 0, &plan) == TAMIS_OK &&
        plan == TAMIS_COMPRESS_PLAN_UNKNOWN);
  CHECK(tamis_compress_plan_bounds(starts, starts, query_lens, 2, 4, 0, &plan) == TAMIS_OK &&
        plan == TAMIS_COMPRESS_PLAN_NONE);
  CHECK(tamis_compress_ring_rows(4, 1, 1, &number) == TAMIS_OK && number == 12);
  CHECK(tamis_compress_ring_rows(128, 0, 0, &number) == TAMIS_OK && number == 128);
  CHECK(tamis_compress_state_begin(514, 4, 1, &number) == TAMIS_OK && number == 508);
  CHECK(tamis_compress_state_begin(514, 128, 0, &number) == TAMIS_OK && number == 512);
  return NULL;
}

const char* c_abi_ops(void) {
  static float cos_sin[kPositions][64];
  float x[2][1][64];
  float row[1][4] = {{3.0F, -3.0F, 3.0F, -3.0F}};
  float y[1][4];
  const float weight[4] = {1.0F, 1.0F, 2.0F, 2.0F};
  const int64_t positions[2] = {1, kPositions};
  const tamis_rope_scaling yarn = {16.0, 65536.0, 32.0, 1.0};
  double plain[32];
  double bent[32];
  int i;
  const tamis_tensor x_view = tamis_tensor_3d(x, TAMIS_DTYPE_FLOAT32, 2, 1, 64);
  const tamis_tensor positions_view = tamis_tensor_1d(positions, TAMIS_DTYPE_INT64, 2);
  const tamis_tensor cos_sin_view = tamis_tensor_2d(cos_sin, TAMIS_DTYPE_FLOAT32, kPositions, 64);
  const tamis_tensor row_view = tamis_tensor_2d(row, TAMIS_DTYPE_FLOAT32, 1, 4);
  const tamis_tensor y_view = tamis_tensor_2d(y, TAMIS_DTYPE_FLOAT32, 1, 4);
  const tamis_tensor weight_view = tamis_tensor_1d(weight, TAMIS_DTYPE_FLOAT32, 4);
  const tamis_tensor absent = {0};
  const char* failed = fill_cos_sin(&cos_sin[0][0]);
  if (failed != NULL) return failed;

  CHECK(tamis_rmsnorm(&row_view, &weight_view, 0.0F, &y_view) == TAMIS_OK);
  CHECK(near(y[0][0], 1.0, 2e-7) && near(y[0][1], -1.0, 2e-7) && near(y[0][2], 2.0, 4e-7));
  CHECK(tamis_rmsnorm(&row_view, NULL, 0.0F, &y_view) == TAMIS_OK && near(y[0][2], 1.0, 2e-7));
  CHECK(tamis_rmsnorm(&row_view, &absent, 0.0F, &y_view) == TAMIS_OK && near(y[0][3], -1.0, 2e-7));

  for (i = 0; i < 64; ++i) x[0][0][i] = x[1][0][i] = i % 2 == 0 ? 1.0F : 0.0F;
  CHECK(tamis_rope(&x_view, &positions_view, &cos_sin_view, 0) == TAMIS_OK);
  CHECK(near(x[0][0][0], cos(1.0), 1e-7) && near(x[0][0][1], sin(1.0), 1e-7));
  CHECK(x[1][0][0] == 1.0F && x[1][0][1] == 0.0F);  // past the table: unchanged
  CHECK(tamis_rope(&x_view, &positions_view, &cos_sin_view, 1) == TAMIS_OK);
  CHECK(near(x[0][0][0], 1.0, 2e-7) && near(x[0][0][1], 0.0, 2e-7));

  CHECK(tamis_rope_frequencies(160000.0, NULL, 32, plain) == TAMIS_OK);
  CHECK(tamis_rope_frequencies(160000.0, &yarn, 32, bent) == TAMIS_OK);
  CHECK(plain[0] == 1.0 && near(bent[31] * 16.0, plain[31], 1e-12));

  CHECK(tamis_hadamard(&row_view) == TAMIS_OK);
  CHECK(row[0][0] == 0.0F && row[0][1] == 6.0F && row[0][2] == 0.0F && row[0][3] == 0.0F);
  return NULL;
}

const char* c_abi_names(void) {
  char version[32];
  snprintf(version, sizeof version, "%d.%d.%d", TAMIS_VERSION_MAJOR, TAMIS_VERSION_MINOR, TAMIS_VERSION_PATCH);
  CHECK(strcmp(tamis_version(), version) == 0);
  CHECK(tamis_version_number() == 10000 * TAMIS_VERSION_MAJOR + 100 * TAMIS_VERSION_MINOR + TAMIS_VERSION_PATCH);
  CHECK(strcmp(tamis_status_name(TAMIS_OK), "ok") == 0);
  CHECK(strcmp(tamis_status_name(TAMIS_RESOURCE_EXHAUSTED), "resource exhausted") == 0);
  CHECK(strcmp(tamis_status_name(-1), "unknown status") == 0 && strcmp(tamis_status_name(7), "unknown status") == 0);
  CHECK(strcmp(tamis_dtype_name(TAMIS_DTYPE_BFLOAT16), "bf16") == 0);
  CHECK(strcmp(tamis_dtype_name(7), "unknown dtype") == 0 && strcmp(tamis_dtype_name(-1), "unknown dtype") == 0);
  CHECK(strcmp(tamis_cache_layout_name(TAMIS_CACHE_INDEXER_MXFP4), "indexer_mxfp4") == 0);
  CHECK(strcmp(tamis_cache_layout_name(7), "unknown layout") == 0);
  CHECK(strcmp(tamis_topk_algorithm_name(TAMIS_TOPK_ALGORITHM_SIMD_FILTER), "simd_filter") == 0);
  CHECK(strcmp(tamis_topk_algorithm_name(256), "unknown algorithm") == 0);
  CHECK(strcmp(tamis_compress_algorithm_name(TAMIS_COMPRESS_ALGORITHM_AUTO), "auto") == 0);
  CHECK(strcmp(tamis_compress_algorithm_name(TAMIS_COMPRESS_ALGORITHM_ANY_WINDOW), "any_window") == 0);
  CHECK(strcmp(tamis_compress_algorithm_name(5), "unknown algorithm") == 0);
  CHECK(strcmp(tamis_compress_algorithm_name(-1), "unknown algorithm") == 0);
  return NULL;
}
