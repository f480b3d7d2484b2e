// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardwire/box.hpp"
#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Element types. Values are moved as opaque bytes and never converted.
enum class DType : std::uint8_t { f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u8, boolean };

/// Bytes of one element.
ByteCount item_size(DType dtype);
/// "f32", "bool", ...: the names used in case files.
std::string_view to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);

/// Names one piece of optimizer state. The fully qualified name is the only name that crosses the wire.
struct TensorKey {
  std::string fqn;    ///< e.g. "layers.3.mlp.down_proj.weight"
  std::string state;  ///< e.g. "exp_avg"

  bool operator==(const TensorKey&) const = default;
  auto operator<=>(const TensorKey&) const = default;
};

/// "layers.3.mlp.down_proj.weight:exp_avg"
std::string to_string(const TensorKey& key);

/// A second name of a parameter, with all its states: `alias` is `fqn`. Shared parameters (lm_head tied to
/// embed_tokens) have several names and are held, and moved, once.
struct Alias {
  std::string alias;
  std::string fqn;

  bool operator==(const Alias&) const = default;
};

/// Properties of a tensor that all ranks share. `shape` is the global shape.
struct TensorSpec {
  TensorKey key;
  DType dtype{};
  Extents shape;

  bool operator==(const TensorSpec&) const = default;
};

}  // namespace shardwire
SHARDWIRE_API_END
