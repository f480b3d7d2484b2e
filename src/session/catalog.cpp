// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <cstring>
#include <map>

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
  std::map<TensorKey, std::string> keys;          // with the parameter's name; the name it was added under
  std::map<std::string, std::string> parameters;  // by alias
  std::map<std::string, std::string> alias_of;    // one alias of each parameter that has some
};

namespace {

[[noreturn]] void refuse_twins(const std::string& a, const std::string& b, const std::string& state) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} and {} are one by the alias table; add a shared parameter once",
                          to_string(TensorKey{a, state}), to_string(TensorKey{b, state})));
}

void refuse_zero(const TensorKey& key, Absent absent) {
  if (absent != Absent::zero) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: Absent::zero is not for values and one-element tensors, since a step of zero breaks Adam's "
                  "bias correction; take Absent::error or Absent::skip",
                  to_string(key)));
}

}  // namespace

Catalog::Catalog(Rank place, int ranks) : place_(place), ranks_(ranks), body_(std::make_shared<Body>()) {
  body_->keys = std::make_shared<Keys>();
  if (ranks < 1 || to_int(place) < 0 || to_int(place) >= ranks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("place {} is not among {} ranks", to_int(place), ranks));
  }
}

Catalog::Body& Catalog::own_body() {
  if (body_.use_count() > 1) body_ = std::make_shared<Body>(*body_);
  return *body_;
}

Catalog::Keys& Catalog::own_keys() {
  auto& keys = own_body().keys;
  if (keys.use_count() > 1) keys = std::make_shared<Keys>(*keys);
  return *keys;
}

void Catalog::check_new(const TensorKey& key) {
  Keys& known = own_keys();
  const auto alias = known.parameters.find(key.fqn);
  const TensorKey own{alias == known.parameters.end() ? key.fqn : alias->second, key.state};
  const auto [entry, fresh] = known.keys.emplace(own, key.fqn);
  if (fresh) return;
  if (entry->second == key.fqn) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is in the catalog already", to_string(key)));
  }
  refuse_twins(key.fqn, entry->second, key.state);
}

void Catalog::alias(std::string alias, std::string fqn) {
  Keys& known = own_keys();
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("alias '{}' of '{}': {}", alias, fqn, why));
  };
  if (alias.empty() || fqn.empty()) refuse("both names have to be given");
  if (alias == fqn) refuse("they are one name");
  if (const auto other = known.parameters.find(alias); other != known.parameters.end()) {
    refuse(fmt::format("it is declared already, as an alias of '{}'", other->second));
  }
  if (const auto other = known.parameters.find(fqn); other != known.parameters.end()) {
    refuse(fmt::format("'{}' is itself an alias of '{}'; declare both as aliases of that", fqn, other->second));
  }
  if (const auto other = known.alias_of.find(alias); other != known.alias_of.end()) {
    refuse(fmt::format("'{}' has the alias '{}'; declare both as aliases of '{}'", alias, other->second, fqn));
  }
  const auto under_alias = known.keys.lower_bound({alias, ""});
  auto past = under_alias;
  for (; past != known.keys.end() && past->first.fqn == alias; ++past) {
    const auto twin = known.keys.find({fqn, past->first.state});
    if (twin != known.keys.end()) refuse_twins(alias, twin->second, past->first.state);
  }
  for (auto entry = under_alias; entry != past; ++entry) known.keys.emplace(TensorKey{fqn, entry->first.state}, alias);
  known.keys.erase(under_alias, past);
  known.parameters.emplace(alias, fqn);
  known.alias_of.emplace(fqn, alias);
  body_->aliases.push_back({std::move(alias), std::move(fqn)});
}

void Catalog::add(TensorSpec spec, Layout layout, View view, Absent absent) {
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
    refuse_zero(spec.key, absent);
    check_new(spec.key);
    TensorValue value{spec.dtype, spec.shape, Bytes(static_cast<std::size_t>(item_size(spec.dtype)))};
    std::memcpy(value.bytes.data(), view.data, value.bytes.size());
    body_->values.push_back({std::move(spec.key), std::move(value), view.data, absent});
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
  body_->entries.push_back({std::move(spec), std::move(layout), view, absent});
}

void Catalog::add_value(TensorKey key, Value value, Absent absent) {
  refuse_zero(key, absent);
  if (depth_of(value) > max_value_depth) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: lists inside lists, more than {} deep, do not travel",
                                                         to_string(key), max_value_depth));
  }
  check_new(key);
  body_->values.push_back({std::move(key), std::move(value), nullptr, absent});
}

}  // namespace shardwire
