#include <tamis/tamis.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char** argv) {
  const float scores[5] = {1.0F, 5.0F, 3.0F, 4.0F, 2.0F};
  int32_t indices[2] = {-9, -9};
  size_t bytes = 0;
  tamis_topk_args args = {0};
  args.struct_size = sizeof args;
  args.scores = tamis_tensor_2d(scores, TAMIS_DTYPE_FLOAT32, 1, 5);
  args.k = 2;
  args.indices = tamis_tensor_2d(indices, TAMIS_DTYPE_INT32, 1, 2);
  if (tamis_topk_workspace_bytes(&args, &bytes) != TAMIS_OK) {
    fprintf(stderr, "%s\n", tamis_last_error());
    return 1;
  }
  args.workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  args.workspace_bytes = bytes;
  if (tamis_topk(&args) != TAMIS_OK || indices[0] != 1 || indices[1] != 3) {
    fprintf(stderr, "%d %d: %s\n", indices[0], indices[1], tamis_last_error());
    return 1;
  }
  free(args.workspace);
  // The package file, the header and the library must be of one version.
  if (argc > 1 && strcmp(tamis_version(), argv[1]) != 0) {
    fprintf(stderr, "library %s, package %s\n", tamis_version(), argv[1]);
    return 1;
  }
  return 0;
}
