// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstring>
#include <set>

#include "geometry/strides.hpp"
#include "shardwire/error.hpp"
#include "shardwire/session.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

void check_declared(const std::string& name, Rank place, const View& view, ElementCount held) {
  if (view.elements < 0 || view.elements == held) return;
  throw Error(
      ErrorCode::layout_mismatch,
      fmt::format("{}: place {} declares a local buffer of {} elements, but its layout puts {} there: correct the "
                  "layout (order, split factor, padding) or the buffer",
                  name, to_int(place), view.elements, held));
}

// From here on data points at local element 0.
void apply_offset(const std::string& name, View& view, ByteCount item_bytes) {
  if (view.offset < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: storage offset {} is negative", name, view.offset));
  }
  if (view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) +
                support::multiply(static_cast<ByteCount>(view.offset), item_bytes, "a storage offset");
  }
  view.offset = 0;
}

}  // namespace

struct Catalog::Keys {
  std::set<TensorKey> keys;
};

Catalog::Catalog(Rank place, int ranks) : place_(place), ranks_(ranks), keys_(std::make_shared<Keys>()) {
  if (ranks < 1 || to_int(place) < 0 || to_int(place) >= ranks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("place {} is not among {} ranks", to_int(place), ranks));
  }
}

void Catalog::check_new(const TensorKey& key) {
  if (keys_.use_count() > 1) keys_ = std::make_shared<Keys>(*keys_);
  if (!keys_->keys.insert(key).second) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is in the catalog already", to_string(key)));
  }
}

void Catalog::add(TensorSpec spec, Layout layout, View view) {
  const std::string name = to_string(spec.key);
  if (view.kind == MemoryKind::cuda || view.ready_event != nullptr) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: device memory is not supported by this build", name));
  }
  const ElementCount elements = volume_of(spec.shape);
  if (elements == 1) check_declared(name, place_, view, 1);
  apply_offset(name, view, item_size(spec.dtype));
  if (elements == 1) {
    // Such tensors travel by value, whatever the layout says, and keep their shape.
    if (view.data == nullptr) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: a one-element tensor needs memory on every rank", name));
    }
    check_new(spec.key);
    TensorValue value{spec.dtype, spec.shape, Bytes(static_cast<std::size_t>(item_size(spec.dtype)))};
    std::memcpy(value.bytes.data(), view.data, value.bytes.size());
    values_.push_back({std::move(spec.key), std::move(value), view.data});
    return;
  }
  try {
    layout.check(spec.shape, ranks_);
    view.strides = check_strides(layout, spec.shape, place_, view.strides);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, place {}: {}", name, to_int(place_), error.what()));
  }
  if (view.elements >= 0) check_declared(name, place_, view, layout.local_elements(spec.shape, place_));
  if (view.data == nullptr && layout.local_elements(spec.shape, place_) > 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: place {} holds elements of it, but its view is null", name, to_int(place_)));
  }
  check_new(spec.key);
  entries_.push_back({std::move(spec), std::move(layout), view});
}

void Catalog::add_value(TensorKey key, Value value) {
  check_new(key);
  values_.push_back({std::move(key), std::move(value), nullptr});
}

}  // namespace shardwire
