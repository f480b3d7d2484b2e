// SPDX-License-Identifier: Apache-2.0
#include "wire/manifest_tables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "wire/varint.hpp"

namespace shardwire::wire {

namespace {

// The parts of a row that differ from the prediction.
constexpr std::uint64_t in_name = 1;
constexpr std::uint64_t in_state = 2;
constexpr std::uint64_t in_shape = 4;
constexpr std::uint64_t in_rule = 8;
constexpr std::uint64_t in_dtype = 16;
constexpr std::int64_t in_any = 31;
constexpr std::int64_t max_dtype = std::numeric_limits<std::uint32_t>::max();

/// Predicts the next row from the rows so far. Both sides keep one.
class Foresight {
 public:
  explicit Foresight(const TableSizes& sizes) : sizes_(sizes), by_name_(sizes.names), dtypes_(sizes.states) {}

  /// Requires: there are names and states. May name a name or state that does not exist.
  [[nodiscard]] TensorRow next() const {
    if (!last_) return {};
    TensorRow row = *last_;
    row.state = last_->state + 1;
    if (row.state >= sizes_.states) {
      row.state = 0;
      ++row.name;
    }
    return row;
  }
  /// Predicts the rest of a row whose name and state are set.
  void complete(TensorRow& row) const {
    if (by_name_[row.name]) {
      row.shape = by_name_[row.name]->first;
      row.rule = by_name_[row.name]->second;
    } else if (last_) {
      row.shape = last_->shape;
      row.rule = last_->rule;
    }
    row.dtype = dtypes_[row.state];
  }
  void fetch_metadata(const TensorRow& row) {
    last_ = row;
    by_name_[row.name] = {row.shape, row.rule};
    dtypes_[row.state] = row.dtype;
  }

 private:
  TableSizes sizes_;
  std::optional<TensorRow> last_;
  std::vector<std::optional<std::pair<std::uint32_t, std::uint32_t>>> by_name_;
  std::vector<std::uint32_t> dtypes_;
};

}  // namespace

Bytes encode_names(const std::vector<const std::string*>& names) {
  Bytes out;
  std::string_view last;
  for (const std::string* name : names) {
    const auto [differs, in_this] = std::mismatch(last.begin(), last.end(), name->begin(), name->end());
    const auto shared = static_cast<std::size_t>(differs - last.begin());
    const auto rest = std::as_bytes(std::span(*name).subspan(shared));
    put_varint(out, shared);
    put_varint(out, rest.size());
    out.insert(out.end(), rest.begin(), rest.end());
    last = *name;
  }
  return out;
}

std::vector<std::string> decode_names(std::span<const std::byte> bytes, const Input& in, Expansion left) {
  std::vector<std::string> names;
  VarintReader reader(bytes, in);
  std::string last;
  while (!reader.done()) {
    if (names.size() == max_rows) in.reject("has too many names");
    const auto shared = static_cast<std::size_t>(reader.number(max_fqn_bytes, "shared length"));
    const auto more = static_cast<std::size_t>(reader.number(max_fqn_bytes, "length"));
    if (shared > last.size()) in.reject("shares more bytes than the name before has");
    if (shared + more > max_fqn_bytes) in.reject("has a name that is too long");
    if (!left.take(shared + more + sizeof(std::string))) in.reject("expands to too many names");
    const auto rest = reader.bytes(more);
    if (std::find(rest.begin(), rest.end(), std::byte{0}) != rest.end()) in.reject("has a zero byte");
    last.resize(shared);
    last.append(reinterpret_cast<const char*>(rest.data()), rest.size());
    names.push_back(last);
  }
  return names;
}

Bytes encode_rows(std::span<const TensorRow> rows, const TableSizes& sizes) {
  if (rows.size() > max_rows) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tensors or values in one publication; at most {} fit", rows.size(), max_rows));
  }
  Bytes out;
  Foresight foresight(sizes);
  for (const TensorRow& row : rows) {
    TensorRow foreseen = foresight.next();
    std::uint64_t differs = (row.name != foreseen.name ? in_name : 0) | (row.state != foreseen.state ? in_state : 0);
    const std::int64_t name_step = std::int64_t{row.name} - foreseen.name;
    foreseen.name = row.name;
    foreseen.state = row.state;
    foresight.complete(foreseen);
    differs |= (row.shape != foreseen.shape ? in_shape : 0) | (row.rule != foreseen.rule ? in_rule : 0) |
               (row.dtype != foreseen.dtype ? in_dtype : 0);
    put_varint(out, differs);
    if ((differs & in_name) != 0) put_varint(out, zigzag(name_step));
    if ((differs & in_state) != 0) put_varint(out, row.state);
    if ((differs & in_shape) != 0) put_varint(out, row.shape);
    if ((differs & in_rule) != 0) put_varint(out, row.rule);
    if ((differs & in_dtype) != 0) put_varint(out, row.dtype);
    foresight.fetch_metadata(row);
  }
  return out;
}

std::vector<TensorRow> decode_rows(std::span<const std::byte> bytes, const TableSizes& sizes, Input& in,
                                   const char* field) {
  std::vector<TensorRow> rows;
  if (bytes.empty()) return rows;
  Foresight foresight(sizes);
  VarintReader reader(bytes, in);
  const auto index = [&](std::size_t size, const char* what) {
    if (size == 0) in.reject("refers to an empty table");
    return static_cast<std::uint32_t>(reader.number(static_cast<std::int64_t>(size) - 1, what));
  };
  while (!reader.done()) {
    in.at(field, rows.size());
    if (rows.size() == max_rows) in.reject("is one too many");
    const auto differs = static_cast<std::uint64_t>(reader.number(in_any, "kind"));
    TensorRow row = foresight.next();
    if ((differs & in_name) != 0) {
      const std::int64_t step = unzigzag(reader.number());
      const std::int64_t name = std::int64_t{row.name} + step;
      if (name < 0 || name >= static_cast<std::int64_t>(sizes.names)) in.reject("refers past the end of the names");
      row.name = static_cast<std::uint32_t>(name);
    }
    if ((differs & in_state) != 0) row.state = index(sizes.states, "state");
    if (row.name >= sizes.names || row.state >= sizes.states) in.reject("refers past the end of a table");
    foresight.complete(row);
    if ((differs & in_shape) != 0) row.shape = index(sizes.shapes, "shape");
    if ((differs & in_rule) != 0) row.rule = index(sizes.rules, "rule");
    if ((differs & in_dtype) != 0) row.dtype = static_cast<std::uint32_t>(reader.number(max_dtype, "dtype"));
    if (row.shape >= sizes.shapes || row.rule >= sizes.rules) in.reject("refers past the end of a table");
    foresight.fetch_metadata(row);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace shardwire::wire
