#ifndef TAMIS_TESTS_C_API_C_ABI_CASES_H
#define TAMIS_TESTS_C_API_C_ABI_CASES_H

// Cases written in C11 against tamis.h alone (c_abi_test.c), run by GoogleTest (c_api_test.cpp). Each returns null when
// all went well, else a text that names the line, the expression and tamis_last_error().

#ifdef __cplusplus
extern "C" {
#endif

const char* c_abi_topk(void);
const char* c_abi_topk_mapping(void);
const char* c_abi_topk_support(void);
const char* c_abi_cache(void);
const char* c_abi_index(void);
const char* c_abi_sparse_mla(void);
const char* c_abi_compress(void);
const char* c_abi_compress_plan(void);
const char* c_abi_compress_step(void);
const char* c_abi_ops(void);
const char* c_abi_names(void);

#ifdef __cplusplus
}
#endif

#endif  // TAMIS_TESTS_C_API_C_ABI_CASES_H
