// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <limits>
#include <map>

#include "geometry/by_value.hpp"
#include "geometry/strides.hpp"
#include "shardwire/error.hpp"
#include "shardwire/session.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

void check_dtype(const TensorSpec& spec, const View& view) {
  if (!view.dtype || *view.dtype == spec.dtype) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is {}, but its view is of {} memory: correct the dtype, or give the memory as bytes",
                          to_string(spec.key), to_string(spec.dtype), to_string(*view.dtype)));
}

void refuse_size(const TensorKey& key, Rank layout_rank, const std::string& declared, const std::string& held) {
  throw Error(ErrorCode::layout_mismatch,
              fmt::format("{}: layout rank {} declares a local buffer of {}, but its layout puts {} there: correct the "
                          "layout (order, split factor, padding) or the buffer",
                          to_string(key), to_int(layout_rank), declared, held));
}

void check_declared(const TensorKey& key, Rank layout_rank, const View& view, ElementCount held, ByteCount item_bytes) {
  if (view.elements >= 0 && view.elements != held) {
    refuse_size(key, layout_rank, fmt::format("{} elements", view.elements), fmt::format("{}", held));
  }
  if (view.bytes < 0) return;
  const ByteCount bytes = support::multiply(static_cast<ByteCount>(held), item_bytes, "the local size of a tensor");
  if (static_cast<ByteCount>(view.bytes) != bytes) {
    refuse_size(key, layout_rank, fmt::format("{} bytes", view.bytes), fmt::format("{} bytes", bytes));
  }
}

void check_memory(Rank layout_rank, const TensorSpec& spec, const Layout& layout, const View& view) {
  if (view.data == nullptr) {
    const bool empty = layout.boxes_of(spec.shape, layout_rank).empty();
    if (empty && view.elements <= 0 && view.bytes <= 0) return;
    if (!empty) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}: layout rank {} holds elements of it, but its view is null", to_string(spec.key),
                              to_int(layout_rank)));
    }
  }
  if (view.elements < 0 && view.bytes < 0) return;
  check_declared(spec.key, layout_rank, view, layout.local_elements(spec.shape, layout_rank), item_size(spec.dtype));
}

// Afterwards data points at local element 0.
void apply_offset(const TensorKey& key, View& view, ByteCount item_bytes) {
  if (view.offset < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: storage offset {} is negative", to_string(key), view.offset));
  }
  if (view.data != nullptr) {
    view.data = static_cast<std::byte*>(view.data) +
                support::multiply(static_cast<ByteCount>(view.offset), item_bytes, "a storage offset");
  }
  view.offset = 0;
}

}  // namespace

struct SHARDWIRE_LOCAL Catalog::Keys {
  struct Added {
    std::string fqn;                  // under which it was added
    std::size_t value = not_a_value;  // index into Body::values
  };
  static constexpr std::size_t not_a_value = std::numeric_limits<std::size_t>::max();

  // The key with the parameter's canonical name.
  [[nodiscard]] TensorKey own(const TensorKey& key) const {
    const auto alias = parameters.find(key.fqn);
    return {alias == parameters.end() ? key.fqn : alias->second, key.state};
  }

  std::map<TensorKey, Added> keys;                // canonical, see own()
  std::map<std::string, std::string> parameters;  // by alias
  std::map<std::string, std::string> alias_of;    // one alias of each parameter that has any
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

void check_depth(const TensorKey& key, const Value& value) {
  if (depth_of(value) <= max_value_depth) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the value nests lists, tuples or maps more than {} deep, and does not travel",
                          to_string(key), max_value_depth));
}

}  // namespace

Catalog::Catalog(Rank layout_rank, int ranks)
    : layout_rank_(layout_rank), ranks_(ranks), body_(std::make_shared<Body>()) {
  body_->keys = std::make_shared<Keys>();
  if (ranks < 1 || to_int(layout_rank) < 0 || to_int(layout_rank) >= ranks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("layout rank {} is not among {} ranks", to_int(layout_rank), ranks));
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

std::vector<std::shared_ptr<void>>& Catalog::own_owners() {
  if (!owners_) {
    owners_ = std::make_shared<std::vector<std::shared_ptr<void>>>();
  } else if (owners_.use_count() > 1) {
    owners_ = std::make_shared<std::vector<std::shared_ptr<void>>>(*owners_);
  }
  return *owners_;
}

Catalog Catalog::without_owners() const {
  Catalog copy = *this;
  copy.owners_.reset();
  return copy;
}

void Catalog::enter(const TensorKey& key, std::size_t value) {
  Keys& known = own_keys();
  const auto [entry, fresh] = known.keys.emplace(known.own(key), Keys::Added{key.fqn, value});
  if (fresh) return;
  if (entry->second.fqn == key.fqn) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is in the catalog already", to_string(key)));
  }
  refuse_twins(key.fqn, entry->second.fqn, key.state);
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
  auto end = under_alias;
  for (; end != known.keys.end() && end->first.fqn == alias; ++end) {
    const auto twin = known.keys.find({fqn, end->first.state});
    if (twin != known.keys.end()) refuse_twins(alias, twin->second.fqn, end->first.state);
  }
  for (auto entry = under_alias; entry != end; ++entry) {
    known.keys.emplace(TensorKey{fqn, entry->first.state}, entry->second);
  }
  known.keys.erase(under_alias, end);
  known.parameters.emplace(alias, fqn);
  known.alias_of.emplace(fqn, alias);
  body_->aliases.push_back({std::move(alias), std::move(fqn)});
}

void Catalog::add(TensorSpec spec, Layout layout, View view, Absent absent) {
  check_dtype(spec, view);
  if (travels_by_value(spec)) refuse_zero(spec.key, absent);
  apply_offset(spec.key, view, item_size(spec.dtype));
  try {
    layout.check(spec.shape, ranks_);
    view.strides = check_strides(layout, spec.shape, layout_rank_, view.strides);
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("{}, layout rank {}: {}", to_string(spec.key), to_int(layout_rank_), error.what()));
  }
  check_memory(layout_rank_, spec, layout, view);
  enter(spec.key, Keys::not_a_value);
  if (view.owner && (!owners_ || owners_->back() != view.owner)) own_owners().push_back(view.owner);
  view.owner = nullptr;
  body_->entries.push_back({std::move(spec), std::move(layout), view, absent});
}

void Catalog::add_value(TensorKey key, Value value, Absent absent, Agree agree) {
  refuse_zero(key, absent);
  check_depth(key, value);
  enter(key, body_->values.size());
  body_->values.push_back({std::move(key), std::move(value), absent, agree});
}

void Catalog::set_value(const TensorKey& key, Value value) {
  check_depth(key, value);
  const auto known = body_->keys->keys.find(body_->keys->own(key));
  if (known == body_->keys->keys.end() || known->second.value == Keys::not_a_value) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: the catalog has no value of this key to renew; add_value() adds one", to_string(key)));
  }
  const std::size_t index = known->second.value;
  own_body().values[index].value = std::move(value);
}

}  // namespace shardwire
