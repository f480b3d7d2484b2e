// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstring>
#include <set>

#include "shardwire/error.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

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
  if (!view.strides.empty()) {
    throw Error(ErrorCode::unsupported, fmt::format("{}: strided views are not supported yet", name));
  }
  const ElementCount elements = volume_of(spec.shape);
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
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name, error.what()));
  }
  if (view.data == nullptr && layout.local_elements(spec.shape, place_) > 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: place {} holds elements of it, but its view is null", name, to_int(place_)));
  }
  check_new(spec.key);
  entries_.push_back({std::move(spec), std::move(layout), view});
}

void Catalog::add_value(TensorKey key, Value value) {
  if (depth_of(value) > max_value_depth) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: lists inside lists, more than {} deep, do not travel",
                                                         to_string(key), max_value_depth));
  }
  check_new(key);
  values_.push_back({std::move(key), std::move(value), nullptr});
}

}  // namespace shardwire
