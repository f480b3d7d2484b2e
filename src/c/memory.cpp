// SPDX-License-Identifier: Apache-2.0
#include "c/memory.hpp"

#include "c/guard.hpp"
#include "c/structs.hpp"
#include "c/tensor.hpp"

namespace shardwire::c_api {

View view_of(const shardwire_view& given) {
  View view;
  view.data = given.data;
  view.kind = memory_kind(given.kind);
  view.device = given.device;
  view.strides = extents(given.strides, given.stride_count, "strides");
  view.ready_event = given.ready_event;
  view.elements = given.elements;
  view.offset = given.offset;
  view.bytes = given.view_bytes;
  if (given.dtype != SHARDWIRE_DTYPE_NONE) view.dtype = dtype_of_number(given.dtype);
  view.read_only = given.read_only;
  return view;
}

shardwire_view view_of(const View& view) {
  auto out = defaults<shardwire_view>();
  out.kind = static_cast<shardwire_memory_kind>(view.kind);
  out.data = view.data;
  out.strides = view.strides.empty() ? nullptr : view.strides.begin();
  out.stride_count = view.strides.size();
  out.ready_event = view.ready_event;
  out.elements = view.elements;
  out.view_bytes = view.bytes;
  out.offset = view.offset;
  if (view.dtype) out.dtype = static_cast<shardwire_dtype>(*view.dtype);
  out.device = view.device;
  out.read_only = view.read_only;
  return out;
}

void set_defaults(shardwire_view& view) {
  const View known;
  view.kind = static_cast<shardwire_memory_kind>(known.kind);
  view.elements = known.elements;
  view.view_bytes = known.bytes;
  view.dtype = SHARDWIRE_DTYPE_NONE;
  view.device = known.device;
}

SHARDWIRE_C_BEGIN

void shardwire_view_init(shardwire_view* view, size_t size) {
  initialize(view, size);
}

shardwire_code shardwire_stop_releasing_owners(int64_t timeout_ns, shardwire_error** error) {
  return guarded(error, [&] { stop_releasing_owners(duration(timeout_ns)); });
}

void shardwire_arena_free(shardwire_arena* arena) {
  destroy(arena);
}

void* shardwire_arena_data(const shardwire_arena* arena) {
  return arena ? peek(arena)->data() : nullptr;
}

uint64_t shardwire_arena_size_bytes(const shardwire_arena* arena) {
  return arena ? peek(arena)->size_bytes() : 0;
}

shardwire_code shardwire_arena_discard(shardwire_arena* arena, uint64_t offset_bytes, uint64_t range_bytes,
                                       uint64_t* freed_bytes, shardwire_error** error) {
  return guarded(error, [&] {
    const ByteCount freed = object(arena, "arena").discard(offset_bytes, range_bytes);
    if (freed_bytes) *freed_bytes = freed;
  });
}

void shardwire_registration_free(shardwire_registration* registration) {
  destroy(registration);
}

uint64_t shardwire_registration_size_bytes(const shardwire_registration* registration) {
  return registration ? peek(registration)->size_bytes() : 0;
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
