// SPDX-License-Identifier: Apache-2.0
// The names and the rows of a manifest, as bytes inside it. The first byte chooses: 0 names, else rows, whose tables have
// as many entries as its four pairs of bits.
#include "wire/manifest_tables.hpp"

#include <array>

#include "fuzz/target.hpp"

namespace shardwire::fuzz {

namespace {

void names(Input input, const wire::Input& in) {
  constexpr std::size_t allowance = 1u << 16;
  const Allocation allocation;
  const auto decoded =
      accepted([&] { return wire::decode_names(input, in, wire::Expansion(input.size(), allowance)); });
  allocation.require_at_most(input.size(), 100, 8 * allowance);
  if (!decoded) return;
  std::vector<const std::string*> pointers;
  for (const std::string& name : *decoded) {
    require(name.size() <= wire::max_fqn_bytes && name.find('\0') == std::string::npos, "a name is a legal name");
    pointers.push_back(&name);
  }
  const Bytes encoded = wire::encode_names(pointers);
  require(encoded.size() <= input.size(), "the encoder's form is the shortest");
  require(wire::decode_names(encoded, in, wire::Expansion(input.size(), allowance)) == *decoded,
          "names survive being encoded");
}

void rows(Input input, const wire::TableSizes& sizes, wire::Input& in) {
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode_rows(input, sizes, in, "rows"); });
  allocation.require_at_most(input.size(), 200, 4096);
  if (!decoded) return;
  for (const wire::TensorRow& row : *decoded) {
    require(row.name < sizes.names && row.state < sizes.states && row.shape < sizes.shapes && row.rule < sizes.rules,
            "a row refers to entries that exist");
  }
  const Bytes encoded = wire::encode_rows(*decoded, sizes);
  require(encoded.size() <= input.size(), "the encoder's form is the shortest");
  require(wire::decode_rows(encoded, sizes, in, "rows") == *decoded, "rows survive being encoded");
}

}  // namespace

void manifest_tables(Input input) {
  if (input.empty()) return;
  const std::array<std::byte, 8> word{};  // of the message around the bytes; only its errors are used
  wire::Input in("tables", word);
  const auto choice = std::to_integer<std::size_t>(input.front());
  if (choice == 0) return names(input.subspan(1), in);
  rows(input.subspan(1), {choice & 3, choice >> 2 & 3, choice >> 4 & 3, choice >> 6}, in);
}

}  // namespace shardwire::fuzz
