// SPDX-License-Identifier: Apache-2.0
// The ranks of a job hold rows of a matrix, and each wants columns. C11, and nothing but the C API.
// Start it once per rank. examples/README.md has the commands and the output.
#include <shardwire/shardwire.h>
#include <stdio.h>
#include <stdlib.h>

enum { rows = 600, columns = 400 };
static const int64_t shape[] = {rows, columns};
static const int64_t minute = 60 * (int64_t)1000000000;
static shardwire_error* error = NULL;

static void check(shardwire_code code) {
  if (code == SHARDWIRE_OK) return;
  fprintf(stderr, "%s: %s\n", shardwire_code_name(code), shardwire_error_message(error));
  exit(1);
}

/// One rank's part of the matrix, under a layout.
typedef struct part {
  shardwire_layout* layout;
  float* data;
  shardwire_catalog* catalog;
} part;

static part part_of(int32_t rank, int32_t ranks, int32_t dim) {
  part made = {NULL, NULL, NULL};
  int64_t elements = 0;
  check(shardwire_layout_chunk(dim, ranks, &made.layout, &error));
  check(shardwire_layout_local_elements(made.layout, shape, 2, ranks, rank, &elements, &error));
  made.data = calloc((size_t)elements + 1, sizeof *made.data);
  if (made.data == NULL) exit(1);

  shardwire_tensor tensor;
  shardwire_tensor_init(&tensor, sizeof tensor);
  tensor.fqn = "layer.weight";
  tensor.state = "exp_avg";
  tensor.dtype = SHARDWIRE_F32;
  tensor.shape = shape;
  tensor.dims = 2;
  shardwire_view view;
  shardwire_view_init(&view, sizeof view);
  view.data = made.data;
  view.elements = elements;
  check(shardwire_catalog_create(rank, ranks, &made.catalog, &error));
  check(shardwire_catalog_add(made.catalog, &tensor, made.layout, &view, SHARDWIRE_ABSENT_ERROR, &error));
  return made;
}

static void free_part(part* one) {
  shardwire_catalog_free(one->catalog);
  shardwire_layout_free(one->layout);
  free(one->data);
}

/// Fills the part: each element is its index in the whole matrix. With `count_wrong`, counts others instead.
static int64_t visit(const part* one, int32_t rank, int32_t ranks, bool count_wrong) {
  shardwire_boxes* boxes = NULL;
  check(shardwire_layout_boxes_of(one->layout, shape, 2, ranks, rank, &boxes, &error));
  size_t count = 0;
  const shardwire_placed_box* all = shardwire_boxes_data(boxes, &count);
  int64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    for (int64_t row = 0; row < all[i].box.extent[0]; ++row) {
      for (int64_t column = 0; column < all[i].box.extent[1]; ++column) {
        float* element =
            one->data + all[i].local_offset + row * all[i].local_strides[0] + column * all[i].local_strides[1];
        const float index = (float)((all[i].box.offset[0] + row) * columns + all[i].box.offset[1] + column);
        if (!count_wrong) *element = index;
        if (*element != index) ++wrong;
      }
    }
  }
  shardwire_boxes_free(boxes);
  return wrong;
}

int main(void) {
  shardwire_bootstrap* bootstrap = NULL;
  shardwire_session* session = NULL;
  check(shardwire_bootstrap_from_env(&bootstrap, &error));
  check(shardwire_session_join(bootstrap, NULL, &session, &error));
  const int32_t rank = shardwire_session_rank(session), ranks = shardwire_session_world_size(session);

  part held = part_of(rank, ranks, 0), wanted = part_of(rank, ranks, 1);
  visit(&held, rank, ranks, false);
  shardwire_publish_options publishing;
  shardwire_publish_options_init(&publishing, sizeof publishing);
  publishing.step = 1000;
  shardwire_publication* publication = NULL;
  check(shardwire_session_publish(session, held.catalog, &publishing, &publication, &error));

  shardwire_restore_options options;
  shardwire_restore_options_init(&options, sizeof options);
  options.step = 1000;
  options.timeout_ns = minute;
  options.verify = SHARDWIRE_VERIFY_DIGEST;
  shardwire_restore* restore = NULL;
  check(shardwire_session_restore(session, wanted.catalog, &options, &restore, &error));
  check(shardwire_restore_wait(restore, &error));

  const shardwire_report* report = NULL;
  shardwire_figures figures;
  shardwire_figures_init(&figures, sizeof figures);
  check(shardwire_restore_report(restore, &report, &error));
  check(shardwire_report_figures(report, &figures, &error));
  const int64_t wrong = visit(&wanted, rank, ranks, true);
  printf("rank %d: needed %llu bytes, had %llu, moved %llu, %lld elements wrong\n", (int)rank,
         (unsigned long long)figures.needed_bytes, (unsigned long long)figures.local_bytes,
         (unsigned long long)figures.moved_bytes, (long long)wrong);

  // Nobody leaves before all have read. If a member is lost, it fails at once: docs/c.md says what to do.
  check(shardwire_session_barrier(session, minute, &error));
  check(shardwire_publication_retire(publication, minute, &error));
  shardwire_restore_free(restore);
  shardwire_publication_free(publication);
  free_part(&held);
  free_part(&wanted);
  shardwire_session_free(session);
  shardwire_bootstrap_free(bootstrap);
  return wrong == 0 ? 0 : 1;
}
