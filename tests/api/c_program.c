// SPDX-License-Identifier: Apache-2.0
// Built outside the tree, as C11, against the installed library: two processes use the C API and check every byte.
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <shardwire/shardwire.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { members = 2, rows = 31, columns = 18 };
static const int64_t second = 1000000000;
static const int64_t shape[] = {rows, columns};
static int my_rank = -1;
static int failures = 0;
static shardwire_error* error = NULL;

static void expect(bool holds, const char* what) {
  if (holds) return;
  printf("member %d: FAILED: %s\n", my_rank, what);
  ++failures;
}

// A member that goes on after an unexpected error would only wait for the other one.
static void expect_ok(shardwire_code code) {
  if (code == SHARDWIRE_OK) return;
  printf("member %d: %s: %s\n", my_rank, shardwire_code_name(code), shardwire_error_message(error));
  exit(1);
}

static void expect_error(shardwire_code code, shardwire_code expected, const char* part) {
  printf("member %d: %s: %s\n", my_rank, shardwire_code_name(code), shardwire_error_message(error));
  expect(code == expected && shardwire_error_code(error) == expected, shardwire_code_name(expected));
  expect(strstr(shardwire_error_message(error), part) != NULL, part);
}

static void forget_error(void) {
  shardwire_error_free(error);
  error = NULL;
}

/// A port that was free a moment ago.
static uint16_t free_port(void) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  struct sockaddr_in address;
  socklen_t length = sizeof address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (listener < 0 || bind(listener, (struct sockaddr*)&address, length) != 0 ||
      getsockname(listener, (struct sockaddr*)&address, &length) != 0) {
    abort();
  }
  close(listener);
  return ntohs(address.sin_port);
}

// Joining, with every callback.

static bool stop_waiting = false;
static bool interrupted(void* context) {
  return *(bool*)context;
}
static void count_message(void* context, shardwire_log_level level, const char* message) {
  if (level >= SHARDWIRE_LOG_WARNING) printf("member %d: log: %s\n", my_rank, message);
  ++*(int*)context;
}

static shardwire_session* join(uint16_t port) {
  static int messages = 0;
  shardwire_bootstrap_fields fields;
  shardwire_bootstrap_fields_init(&fields, sizeof fields);
  fields.rank = my_rank;
  fields.world_size = members;
  fields.port = port;
  shardwire_bootstrap* bootstrap = NULL;
  expect_ok(shardwire_bootstrap_create(&fields, &bootstrap, &error));

  shardwire_session_options options;
  shardwire_session_options_init(&options, sizeof options);
  options.transport = "shm,tcp";
  options.join_timeout_ns = 60 * second;
  options.log = count_message;
  options.log_context = &messages;
  options.interrupted = interrupted;
  options.interrupted_context = &stop_waiting;
  shardwire_session* session = NULL;
  expect_ok(shardwire_session_join(bootstrap, &options, &session, &error));
  shardwire_bootstrap_free(bootstrap);
  expect(shardwire_session_rank(session) == my_rank, "rank");
  expect(shardwire_session_world_size(session) == members, "world size");

  shardwire_strings* transports = NULL;
  expect_ok(shardwire_session_transports(session, &transports, &error));
  expect(shardwire_strings_count(transports) == 2, "two transports");
  expect(strncmp(shardwire_strings_at(transports, 0, NULL), "shm", 3) == 0, "shm comes first");
  shardwire_strings_free(transports);
  return session;
}

static void meet(shardwire_session* session, const char* name) {
  const char value[] = {(char)('a' + my_rank), '\0', 'z'};
  shardwire_strings* values = NULL;
  expect_ok(shardwire_session_gather(session, name, value, sizeof value, 60 * second, &values, &error));
  size_t bytes = 0;
  const char* last = shardwire_strings_at(values, members - 1, &bytes);
  expect(shardwire_strings_count(values) == members && bytes == sizeof value && memcmp(last, "b\0z", bytes) == 0,
         "gathered values");
  shardwire_strings_free(values);
  expect_ok(shardwire_session_barrier(session, 60 * second, &error));
}

// Tensors: each element is its global index.

static shardwire_tensor weight(const char* fqn) {
  shardwire_tensor tensor;
  shardwire_tensor_init(&tensor, sizeof tensor);
  tensor.fqn = fqn;
  tensor.state = "exp_avg";
  tensor.dtype = SHARDWIRE_F32;
  tensor.shape = shape;
  tensor.dims = 2;
  return tensor;
}

static size_t local_elements(const shardwire_layout* layout) {
  int64_t elements = -1;
  expect_ok(shardwire_layout_local_elements(layout, shape, 2, members, my_rank, &elements, &error));
  return (size_t)elements;
}

static float expected_at(const shardwire_box* box, int64_t row, int64_t column) {
  return (float)((box->offset[0] + row) * columns + box->offset[1] + column);
}

/// Fills the local part of the tensor; with `check`, counts wrong elements instead.
static int visit(const shardwire_layout* layout, float* data, bool check) {
  shardwire_boxes* boxes = NULL;
  expect_ok(shardwire_layout_boxes_of(layout, shape, 2, members, my_rank, &boxes, &error));
  size_t count = 0;
  const shardwire_placed_box* all = shardwire_boxes_data(boxes, &count);
  int wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    for (int64_t row = 0; row < all[i].box.extent[0]; ++row) {
      for (int64_t column = 0; column < all[i].box.extent[1]; ++column) {
        float* element = data + all[i].local_offset + row * all[i].local_strides[0] + column * all[i].local_strides[1];
        const float expected = expected_at(&all[i].box, row, column);
        if (!check) *element = expected;
        if (memcmp(element, &expected, sizeof expected) != 0) ++wrong;
      }
    }
  }
  shardwire_boxes_free(boxes);
  return wrong;
}

static void add(shardwire_catalog* catalog, const char* fqn, const shardwire_layout* layout, void* data) {
  const shardwire_tensor tensor = weight(fqn);
  shardwire_view view;
  shardwire_view_init(&view, sizeof view);
  view.data = data;
  view.dtype = SHARDWIRE_F32;
  expect_ok(shardwire_catalog_add(catalog, &tensor, layout, &view, SHARDWIRE_ABSENT_ERROR, &error));
}

static shardwire_catalog* new_catalog(void) {
  shardwire_catalog* catalog = NULL;
  expect_ok(shardwire_catalog_create(my_rank, members, &catalog, &error));
  return catalog;
}

// Values: {"betas": (0.9, 0.95), "name": "adam"}.

static shardwire_value* scheduler(void) {
  shardwire_value *map = NULL, *betas = NULL, *beta = NULL, *name = NULL;
  expect_ok(shardwire_value_map(&map, &error));
  expect_ok(shardwire_value_tuple(&betas, &error));
  expect_ok(shardwire_value_double(0.9, &beta, &error));
  expect_ok(shardwire_value_append(betas, beta, &error));
  shardwire_value_free(beta);
  expect_ok(shardwire_value_double(0.95, &beta, &error));
  expect_ok(shardwire_value_append(betas, beta, &error));
  expect_ok(shardwire_value_string("adam", 4, &name, &error));
  expect_ok(shardwire_value_set(map, "name", name, &error));
  expect_ok(shardwire_value_set(map, "betas", betas, &error));
  shardwire_value_free(beta);
  shardwire_value_free(betas);
  shardwire_value_free(name);
  return map;
}

static void add_values(shardwire_catalog* catalog) {
  shardwire_value *map = scheduler(), *seed = NULL;
  expect_ok(shardwire_catalog_add_value(catalog, "", "scheduler", map, SHARDWIRE_ABSENT_ERROR,
                                        SHARDWIRE_AGREE_AUTHORITATIVE, &error));
  expect_ok(shardwire_value_int(my_rank, &seed, &error));
  expect_ok(shardwire_catalog_add_value(catalog, "", "seed", seed, SHARDWIRE_ABSENT_ERROR,
                                        SHARDWIRE_AGREE_AUTHORITATIVE, &error));
  shardwire_value_free(seed);
  shardwire_value_free(map);
}

static void want_value(shardwire_catalog* catalog, const char* state, shardwire_agree agree) {
  expect_ok(shardwire_catalog_add_value(catalog, "", state, NULL, SHARDWIRE_ABSENT_ERROR, agree, &error));
}

static void check_values(const shardwire_restore* restore) {
  const shardwire_value *map = NULL, *seed = NULL;
  expect_ok(shardwire_restore_value(restore, "", "scheduler", &map, &error));
  shardwire_value* expected = scheduler();
  expect(shardwire_value_equal(map, expected), "the scheduler's state came back");
  shardwire_value_free(expected);
  double beta = 0;
  expect_ok(shardwire_value_to_double(shardwire_value_item(shardwire_value_find(map, "betas"), 1), &beta, &error));
  expect(beta == 0.95, "the second beta");
  char text[64];
  const size_t length = shardwire_value_to_string(map, text, sizeof text);
  expect(strcmp(text, "{'betas': (0.9, 0.95), 'name': 'adam'}") == 0 && strlen(text) == length, text);

  int64_t number = -1;
  expect_ok(shardwire_restore_value(restore, "", "seed", &seed, &error));
  expect_ok(shardwire_value_to_int(seed, &number, &error));
  expect(number == my_rank, "a value of this rank alone");
  expect(shardwire_value_to_double(seed, &beta, NULL) == SHARDWIRE_INVALID_ARGUMENT, "an integer is no float");
  expect(beta == 0.95, "a failed call sets nothing");
}

// Restores.

static void note_progress(void* context, const shardwire_progress* progress) {
  if (strcmp(progress->stage, "done") == 0) *(uint64_t*)context = progress->done_bytes;
}

static void wait_by_descriptor(shardwire_restore* restore) {
  struct pollfd event = {.events = POLLIN};
  expect_ok(shardwire_restore_event_descriptor(restore, &event.fd, &error));
  expect(poll(&event, 1, 60000) == 1 && (event.revents & POLLIN) != 0, "the descriptor tells of the end");
  bool done = false;
  expect_ok(shardwire_restore_poll(restore, &done, &error));
  expect(done, "the restore has ended");
}

static void check_report(const shardwire_restore* restore, uint64_t bytes) {
  const shardwire_report* report = NULL;
  expect_ok(shardwire_restore_report(restore, &report, &error));
  shardwire_figures figures;
  shardwire_figures_init(&figures, sizeof figures);
  expect_ok(shardwire_report_figures(report, &figures, &error));
  expect(figures.needed_bytes == bytes, "needed bytes");
  expect(figures.moved_bytes + figures.local_bytes == bytes + figures.overread_bytes + figures.resent_bytes,
         "moved and local bytes");
  expect(shardwire_report_peer_count(report) >= 2, "two peers");
  shardwire_peer_figures peer;
  shardwire_peer_figures_init(&peer, sizeof peer);
  expect_ok(shardwire_report_peer(report, 0, &peer, &error));
  expect(peer.measured_seconds > 0 && peer.measured_seconds <= figures.move_seconds, "measured seconds of a peer");
  printf("member %d: from rank %d over %s\n", my_rank, peer.rank, peer.path);
}

/// Restores the tensor from chunks to whole copies.
static void restore_all(shardwire_session* session) {
  shardwire_layout* whole = NULL;
  expect_ok(shardwire_layout_replicated(&whole, &error));
  const size_t bytes = local_elements(whole) * sizeof(float);
  float* data = malloc(bytes);
  memset(data, 0xee, bytes);
  shardwire_catalog* wanted = new_catalog();
  add(wanted, "weight", whole, data);
  want_value(wanted, "scheduler", SHARDWIRE_AGREE_AUTHORITATIVE);
  want_value(wanted, "seed", SHARDWIRE_AGREE_PER_RANK);

  shardwire_restore_options options;
  shardwire_restore_options_init(&options, sizeof options);
  options.verify = SHARDWIRE_VERIFY_DIGEST;
  options.step = 1000;
  options.stop_at_values = true;
  shardwire_restore* restore = NULL;
  uint64_t done_bytes = 0;
  bool ready = false;
  expect_ok(shardwire_session_restore(session, wanted, &options, &restore, &error));
  expect_ok(shardwire_restore_on_progress(restore, note_progress, &done_bytes, second / 1000, &error));
  expect_ok(shardwire_restore_wait_values(restore, &error));
  expect_ok(shardwire_restore_values_ready(restore, &ready, &error));
  expect(ready && done_bytes == 0, "values before the first byte");
  check_values(restore);
  expect_ok(shardwire_restore_proceed(restore, &error));
  wait_by_descriptor(restore);
  expect_ok(shardwire_restore_wait(restore, &error));
  expect(visit(whole, data, true) == 0, "every element came back");
  check_report(restore, bytes);
  check_values(restore);
  shardwire_restore_free(restore);
  expect(done_bytes == 0 || done_bytes == bytes, "bytes of the progress");
  shardwire_catalog_free(wanted);
  shardwire_layout_free(whole);
  free(data);
}

/// Restores something that no rank holds as a whole, and a value that the ranks disagree about.
static void restore_in_vain(shardwire_session* session) {
  shardwire_layout* whole = NULL;
  expect_ok(shardwire_layout_replicated(&whole, &error));
  float* data = malloc(local_elements(whole) * sizeof(float));
  shardwire_catalog* wanted = new_catalog();
  add(wanted, "half", whole, data);
  shardwire_restore* restore = NULL;
  expect_ok(shardwire_session_restore(session, wanted, NULL, &restore, &error));
  expect_error(shardwire_restore_wait(restore, &error), SHARDWIRE_LAYOUT_MISMATCH, "half");
  size_t count = 0;
  const shardwire_gap* gaps = shardwire_error_gaps(error, &count);
  expect(count == 1 && strcmp(gaps[0].key.fqn, "half") == 0 && strcmp(gaps[0].key.state, "exp_avg") == 0 &&
             gaps[0].target == my_rank && gaps[0].box.dims == 2 && gaps[0].box.offset[0] == 16 &&
             gaps[0].box.extent[0] == rows - 16 && gaps[0].box.extent[1] == columns,
         "the gap is the half that no rank holds");
  expect(!shardwire_error_retryable(error), "a gap does not go away");
  shardwire_figures figures;
  shardwire_figures_init(&figures, sizeof figures);
  expect(shardwire_report_figures(shardwire_error_report(error), &figures, NULL) == SHARDWIRE_OK &&
             figures.plan_seconds > 0,
         "the report of what failed");
  forget_error();
  shardwire_restore_free(restore);
  shardwire_catalog_free(wanted);
  shardwire_layout_free(whole);
  free(data);

  wanted = new_catalog();
  want_value(wanted, "seed", SHARDWIRE_AGREE_AUTHORITATIVE);
  expect_ok(shardwire_session_restore(session, wanted, NULL, &restore, &error));
  expect_error(shardwire_restore_wait(restore, &error), SHARDWIRE_LAYOUT_MISMATCH, "seed");
  const int32_t* ranks = shardwire_error_ranks(error, &count);
  expect(count == 2 && ranks[0] == 0 && ranks[1] == 1, "the ranks that disagree");
  forget_error();
  shardwire_restore_free(restore);
  shardwire_catalog_free(wanted);
}

static void check_inventory(shardwire_session* session) {
  shardwire_inventory* inventory = NULL;
  expect_ok(shardwire_session_await_step(session, "state", 1000, 60 * second, &inventory, &error));
  size_t count = 0;
  const shardwire_publisher* publishers = shardwire_inventory_publishers(inventory, &count);
  expect(
      shardwire_inventory_step(inventory) == 1000 && count == 2 && publishers[1].rank == 1 && publishers[1].member == 1,
      "publishers");
  shardwire_inventory_absent(inventory, &count);
  expect(count == 0, "no rank is absent");
  const shardwire_key* keys = shardwire_inventory_values(inventory, &count);
  expect(count == 2 && strcmp(keys[0].state, "scheduler") == 0, "keys of values");

  const shardwire_job_layout* held = shardwire_inventory_held(inventory);
  shardwire_tensor tensor;
  const shardwire_layout* layout = NULL;
  shardwire_tensor_init(&tensor, sizeof tensor);
  expect(shardwire_job_layout_section_count(held) == 1 && shardwire_job_layout_tensor_count(held, 0) == 2,
         "two tensors");
  expect_ok(shardwire_job_layout_tensor(held, 0, 0, &tensor, &layout, &error));
  expect(strcmp(tensor.fqn, "weight") == 0 && tensor.dims == 2 && tensor.shape[1] == columns, "tensor");
  shardwire_layout* chunk = NULL;
  expect_ok(shardwire_layout_chunk(0, members, &chunk, &error));
  expect(shardwire_layout_equal(layout, chunk), "layout");
  shardwire_layout_free(chunk);
  shardwire_strings* text = NULL;
  expect_ok(shardwire_inventory_to_case(inventory, NULL, &text, &error));
  expect(strstr(shardwire_strings_at(text, 0, NULL), "\"step 1000\"") != NULL, "a case of the step");
  shardwire_strings_free(text);
  shardwire_inventory_free(inventory);
}

static void check_paths(shardwire_session* session) {
  shardwire_paths* paths = NULL;
  expect_ok(shardwire_session_paths(session, "state", 60 * second, &paths, &error));
  expect(shardwire_paths_peer_count(paths) == members, "a path to each publisher");
  const size_t other = (size_t)(1 - my_rank);
  shardwire_peer_path peer;
  shardwire_peer_path_init(&peer, sizeof peer);
  expect_ok(shardwire_paths_peer(paths, other, &peer, &error));
  expect(peer.rank == 1 - my_rank && strcmp(peer.failure, "") == 0 && peer.memory_count == 1, peer.failure);
  shardwire_transport_path path;
  shardwire_transport_path_init(&path, sizeof path);
  expect_ok(shardwire_paths_transport(paths, other, 0, 0, &path, &error));
  expect(strcmp(path.transport, "shm") == 0 && path.reach == SHARDWIRE_REACH_HOST && path.map, path.fallback_detail);
  size_t transports = 0, rejected = 1;
  expect_ok(shardwire_paths_memory(paths, other, 0, NULL, &transports, &rejected, &error));
  expect(transports > 0 && rejected == 0, "nothing would be better than shared memory");
  expect(strcmp(shardwire_fallback_reason_name(SHARDWIRE_FALLBACK_MEMLOCK), "memlock") == 0 &&
             strcmp(shardwire_fallback_reason_name(SHARDWIRE_FALLBACK_COUNT), "unknown") == 0,
         "names of reasons");
  shardwire_paths_free(paths);
}

// Nobody publishes this step, so only the callback ends the wait.
static void check_interruption(shardwire_session* session) {
  shardwire_inventory* inventory = NULL;
  stop_waiting = true;
  expect_error(shardwire_session_await_step(session, "nothing", 1, 3600 * second, &inventory, &error),
               SHARDWIRE_CANCELLED, "interrupted");
  expect(inventory == NULL, "a failed call gives nothing");
  stop_waiting = false;
  forget_error();
}

static void exchange(shardwire_session* session) {
  shardwire_layout *by_row = NULL, *by_column = NULL;
  expect_ok(shardwire_layout_chunk(0, members, &by_row, &error));
  expect_ok(shardwire_layout_chunk(1, members, &by_column, &error));
  float* from = malloc(local_elements(by_row) * sizeof(float));
  float* to = malloc(local_elements(by_column) * sizeof(float));
  visit(by_row, from, false);
  shardwire_catalog *held = new_catalog(), *wanted = new_catalog();
  add(held, "weight", by_row, from);
  add(wanted, "weight", by_column, to);
  add_values(held);
  want_value(wanted, "scheduler", SHARDWIRE_AGREE_AUTHORITATIVE);

  shardwire_exchange* running = NULL;
  const shardwire_exchange_result* result = NULL;
  expect_ok(shardwire_session_start_exchange(session, held, wanted, NULL, &running, &error));
  expect_ok(shardwire_exchange_wait(running, &error));
  expect_ok(shardwire_exchange_result_of(running, &result, &error));
  expect(visit(by_column, to, true) == 0, "the exchange moved every element");
  expect(shardwire_value_count(shardwire_exchange_result_value(result, "", "scheduler")) == 2, "and the values");
  expect(shardwire_exchange_result_value(result, "", "seed") == NULL, "but no value that was not wanted");
  shardwire_exchange_free(running);

  memset(to, 0, local_elements(by_column) * sizeof(float));
  shardwire_exchange_result* owned = NULL;
  expect_ok(shardwire_session_exchange(session, held, wanted, NULL, &owned, &error));
  expect(visit(by_column, to, true) == 0, "the blocking form, too");
  shardwire_exchange_result_free(owned);
  shardwire_catalog_free(held);
  shardwire_catalog_free(wanted);
  shardwire_layout_free(by_row);
  shardwire_layout_free(by_column);
  free(from);
  free(to);
}

// Structs of programs that were compiled with another version of the header.

static void check_older_struct(shardwire_session* session) {
  enum { known = offsetof(shardwire_restore_options, timeout_ns) };
  unsigned char memory[sizeof(shardwire_restore_options)];
  memset(memory, 0xee, sizeof memory);
  shardwire_restore_options* options = (shardwire_restore_options*)(void*)memory;
  shardwire_restore_options_init(options, known);
  expect(options->size == known && options->step == SHARDWIRE_UNSET_STEP, "an older struct is filled");
  for (size_t i = known; i < sizeof memory; ++i) expect(memory[i] == 0xee, "and nothing behind it");

  shardwire_catalog* wanted = new_catalog();
  shardwire_restore* restore = NULL;
  expect_ok(shardwire_session_restore(session, wanted, options, &restore, &error));
  expect_ok(shardwire_restore_wait(restore, &error));  // the timeout is the default, not 0xee..
  shardwire_restore_free(restore);
  shardwire_catalog_free(wanted);
}

static void check_newer_struct(shardwire_session* session) {
  struct {
    shardwire_restore_options known;
    uint64_t later[8];
  } options;
  memset(&options, 0xee, sizeof options);
  shardwire_restore_options_init(&options.known, sizeof options);
  expect(options.known.size == sizeof options && options.known.version == 1, "a newer struct learns the version");
  for (size_t i = 0; i < 8; ++i) expect(options.later[i] == UINT64_C(0xeeeeeeeeeeeeeeee), "its end stays");
  shardwire_catalog* wanted = new_catalog();
  shardwire_restore* restore = NULL;
  expect_ok(shardwire_session_restore(session, wanted, &options.known, &restore, &error));
  expect_ok(shardwire_restore_wait(restore, &error));
  shardwire_restore_free(restore);

  memset(&options, 0, sizeof options);
  expect_error(shardwire_session_restore(session, wanted, &options.known, &restore, &error), SHARDWIRE_INVALID_ARGUMENT,
               "shardwire_restore_options_init");
  forget_error();
  shardwire_catalog_free(wanted);
}

static int released = 0;
static void count_release(void* owner) {
  ++*(int*)owner;
}

static void check_owner(shardwire_session* session) {
  shardwire_layout* whole = NULL;
  expect_ok(shardwire_layout_replicated(&whole, &error));
  shardwire_catalog* held = new_catalog();
  const shardwire_tensor tensor = weight("owned");
  static float data[rows * columns];
  shardwire_view view;
  shardwire_view_init(&view, sizeof view);
  view.data = data;
  view.owner = &released;
  view.release = count_release;
  expect_ok(shardwire_catalog_add(held, &tensor, whole, &view, SHARDWIRE_ABSENT_ERROR, &error));
  expect(shardwire_catalog_add(held, &tensor, whole, &view, SHARDWIRE_ABSENT_ERROR, NULL) == SHARDWIRE_INVALID_ARGUMENT,
         "a key can be added once");
  shardwire_publish_options options;
  shardwire_publish_options_init(&options, sizeof options);
  options.name = "owned";
  shardwire_publication* publication = NULL;
  expect_ok(shardwire_session_publish(session, held, &options, &publication, &error));
  shardwire_catalog_free(held);
  expect(released == 0, "the publication keeps the owner");
  shardwire_retirement* retirement = NULL;
  expect_ok(shardwire_publication_start_retire(publication, 60 * second, &retirement, &error));
  expect_ok(shardwire_retirement_wait(retirement, &error));
  shardwire_retirement_free(retirement);
  shardwire_publication_free(publication);
  expect_ok(shardwire_stop_releasing_owners(60 * second, &error));
  expect(released == 1, "the owner is released once");
  shardwire_layout_free(whole);
}

// Plans need no session.
static void check_plan(void) {
  shardwire_layout *by_row = NULL, *whole = NULL;
  shardwire_job_layout *from = NULL, *to = NULL;
  shardwire_planner* planner = NULL;
  shardwire_plan* plan = NULL;
  shardwire_deliveries* deliveries = NULL;
  const shardwire_tensor tensor = weight("weight");
  size_t section = 9, count = 0;
  expect_ok(shardwire_layout_chunk(0, members, &by_row, &error));
  expect_ok(shardwire_layout_replicated(&whole, &error));
  expect_ok(shardwire_job_layout_create(members, &from, &error));
  expect_ok(shardwire_job_layout_add_section(from, NULL, 0, &section, &error));
  expect_ok(shardwire_job_layout_add(from, section, &tensor, by_row, &error));
  expect_ok(shardwire_job_layout_create(1, &to, &error));
  expect_ok(shardwire_job_layout_add_section(to, NULL, 0, &section, &error));
  expect_ok(shardwire_job_layout_add(to, section, &tensor, whole, &error));
  expect_ok(shardwire_planner_create(from, to, NULL, SHARDWIRE_REPLICAS_SPREAD, &planner, &error));
  expect_ok(shardwire_planner_plan(planner, 0, &plan, &error));
  shardwire_piece piece;
  expect(shardwire_plan_piece_count(plan) == 2, "two pieces");
  expect_ok(shardwire_plan_piece(plan, 1, &piece, &error));
  expect(piece.holder_count == 1 && piece.holders[0] == 1 && piece.box.offset[0] == 16, "the second from rank 1");
  expect_ok(shardwire_plan_for_source(from, to, 1, &deliveries, &error));
  const shardwire_delivery* sent = shardwire_deliveries_data(deliveries, &count);
  expect(count == 1 && sent[0].target == 0 && sent[0].box.extent[0] == rows - 16, "which rank 1 delivers");
  shardwire_deliveries_free(deliveries);
  shardwire_plan_free(plan);
  shardwire_planner_free(planner);
  shardwire_job_layout_free(from);
  shardwire_job_layout_free(to);
  shardwire_layout_free(by_row);
  shardwire_layout_free(whole);
}

static int member(uint16_t port) {
  shardwire_session* session = join(port);
  shardwire_layout *by_row = NULL, *half = NULL;
  const shardwire_rank_box upper = {0, {2, {0, 0}, {16, columns}}};
  expect_ok(shardwire_layout_chunk(0, members, &by_row, &error));
  expect_ok(shardwire_layout_boxes(&upper, 1, &half, &error));

  shardwire_arena* arena = NULL;
  expect_ok(shardwire_session_allocate(session, local_elements(by_row) * sizeof(float), SHARDWIRE_MEMORY_HOST, 0,
                                       &arena, &error));
  float* data = shardwire_arena_data(arena);
  visit(by_row, data, false);
  shardwire_catalog* held = new_catalog();
  add(held, "weight", by_row, data);
  add(held, "half", half, data);
  add_values(held);
  shardwire_publish_options options;
  shardwire_publish_options_init(&options, sizeof options);
  options.step = 1000;
  shardwire_publication* publication = NULL;
  expect_ok(shardwire_session_publish(session, held, &options, &publication, &error));
  shardwire_catalog_free(held);

  check_inventory(session);
  check_paths(session);
  restore_all(session);
  restore_in_vain(session);
  check_interruption(session);
  check_older_struct(session);
  check_newer_struct(session);
  meet(session, "restored");
  expect_ok(shardwire_publication_retire(publication, 60 * second, &error));
  exchange(session);
  check_owner(session);
  check_plan();

  shardwire_usage usage;
  shardwire_usage_init(&usage, sizeof usage);
  expect_ok(shardwire_session_usage(session, &usage, &error));
  expect(usage.registered_bytes > 0, "the arena is counted");
  meet(session, "done");
  expect_ok(shardwire_session_close(session, 60 * second, &error));
  shardwire_publication_free(publication);
  shardwire_arena_free(arena);
  shardwire_layout_free(by_row);
  shardwire_layout_free(half);
  shardwire_session_free(session);
  printf("member %d: %d failures\n", my_rank, failures);
  return failures == 0 ? 0 : 1;
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  expect(strcmp(shardwire_version(), SHARDWIRE_VERSION) == 0, shardwire_version());
  const uint16_t port = free_port();
  const pid_t other = fork();
  if (other < 0) return 1;
  my_rank = other == 0 ? 1 : 0;
  if (other == 0) return member(port);
  const int mine = member(port);
  int status = 1;
  if (waitpid(other, &status, 0) != other || !WIFEXITED(status)) return 1;
  return mine + WEXITSTATUS(status);
}
