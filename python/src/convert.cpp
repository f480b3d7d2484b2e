// SPDX-License-Identifier: Apache-2.0
#include "convert.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <vector>

namespace shardwire::python {

namespace {

// " (did you mean 'bf16'?)", or nothing if no known word is near. Python's difflib decides by common letters. The library and the
// command count edits (support/nearest.hpp), and for "rd" they do not suggest "read".
std::string suggestion(std::string_view given, const std::vector<std::string>& known) {
  nb::list words;
  for (const std::string& word : known) words.append(nb::str(word.c_str()));
  const nb::object near = attribute("difflib", "get_close_matches")(nb::str(given.data(), given.size()), words, 1);
  return nb::len(near) == 0 ? std::string() : fmt::format(" (did you mean '{}'?)", nb::cast<std::string>(near[0]));
}

template <typename Enum>
Enum choose(const Name& name, const char* what, std::initializer_list<std::pair<std::string_view, Enum>> choices) {
  std::vector<std::string> names;
  for (const auto& [text, choice] : choices) {
    if (name.text == text) return choice;
    names.emplace_back(text);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}', not one of: {}{}", what, name.text,
                                                       fmt::join(names, ", "), suggestion(name.text, names)));
}

const std::map<std::string_view, DType>& long_names() {
  static const std::map<std::string_view, DType> names{
      {"float64", DType::f64},
      {"double", DType::f64},
      {"float32", DType::f32},
      {"float", DType::f32},
      {"float16", DType::f16},
      {"half", DType::f16},
      {"bfloat16", DType::bf16},
      {"float8_e4m3fn", DType::f8e4m3},
      {"float8_e5m2", DType::f8e5m2},
      {"float8_e4m3fnuz", DType::f8e4m3fnuz},
      {"float8_e5m2fnuz", DType::f8e5m2fnuz},
      {"float8_e8m0fnu", DType::f8e8m0},
      {"int64", DType::i64},
      {"int32", DType::i32},
      {"int16", DType::i16},
      {"int8", DType::i8},
      {"uint64", DType::u64},
      {"uint32", DType::u32},
      {"uint16", DType::u16},
      {"uint8", DType::u8},
      {"bool_", DType::boolean},
      {"complex128", DType::complex128},
      {"complex64", DType::complex64},
  };
  return names;
}

}  // namespace

Seconds::operator Duration() const {
  if (std::isnan(value) || value < 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a time is {} s; it has to be >= 0", value));
  }
  const double nanoseconds = value * 1e9;
  // Half of the range, so that a deadline that counts from now stays within it.
  constexpr auto longest = Duration::max() / 4;
  return nanoseconds >= static_cast<double>(longest.count()) ? longest
                                                             : Duration(static_cast<std::int64_t>(nanoseconds));
}

MeshOrder mesh_order(const Name& name) {
  return choose<MeshOrder>(name, "order", {{"mesh", MeshOrder::mesh}, {"tp_first", MeshOrder::tp_first}});
}

Absent absent(const Name& name) {
  return choose<Absent>(name, "absent", {{"error", Absent::error}, {"skip", Absent::skip}, {"zero", Absent::zero}});
}

Agree agree(const Name& name) {
  return choose<Agree>(name, "agree",
                       {{"authoritative", Agree::authoritative}, {"any", Agree::any}, {"per_rank", Agree::per_rank}});
}

Snapshot snapshot(const Name& name) {
  return choose<Snapshot>(name, "snapshot", {{"none", Snapshot::none}, {"copy", Snapshot::copy}});
}

Verify verify(const Name& name) {
  return choose<Verify>(name, "verify", {{"generation", Verify::generation}, {"digest", Verify::digest}});
}

Replicas replicas(const Name& name) {
  return choose<Replicas>(name, "replicas",
                          {{"spread", Replicas::spread}, {"first", Replicas::first}, {"compare", Replicas::compare}});
}

StepRule step_rule(const Name& name) {
  return choose<StepRule>(name, "step_rule",
                          {{"agreed", StepRule::agreed}, {"newest_complete", StepRule::newest_complete}});
}

RestoreMethod restore_method(const Name& name) {
  return choose<RestoreMethod>(name, "method",
                               {{"mapped", RestoreMethod::mapped},
                                {"read", RestoreMethod::read},
                                {"sieved_read", RestoreMethod::sieved_read},
                                {"zcopy", RestoreMethod::zcopy},
                                {"packed", RestoreMethod::packed}});
}

ExchangeMethod exchange_method(const Name& name) {
  return choose<ExchangeMethod>(name, "method",
                                {{"mapped", ExchangeMethod::mapped},
                                 {"read", ExchangeMethod::read},
                                 {"sieved_read", ExchangeMethod::sieved_read},
                                 {"zcopy", ExchangeMethod::zcopy},
                                 {"packed", ExchangeMethod::packed},
                                 {"collective", ExchangeMethod::collective}});
}

TypeName::operator DType() const {
  std::string_view name = text;
  if (name.starts_with("torch.")) name.remove_prefix(6);
  if (const auto found = parse_dtype(name)) return *found;
  if (const auto found = long_names().find(name); found != long_names().end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [long_name, dtype] : long_names())
    known.insert(known.end(), {std::string(long_name), to_string(dtype)});
  throw Error(ErrorCode::invalid_argument,
              fmt::format("dtype is '{}', which names no type of elements{}", text, suggestion(name, known)));
}

nb::tuple to_python(const Extents& extents) {
  nb::object out = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(extents.size())));
  for (std::size_t i = 0; i < extents.size(); ++i) {
    PyTuple_SetItem(out.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(extents[i]));
  }
  return nb::borrow<nb::tuple>(out);
}

nb::object to_python(const Box& box) {
  return make("Box", to_python(box.offset), to_python(box.size));
}

nb::object to_python(const PlacedBox& box) {
  return make("PlacedBox", to_python(box.box), box.local_offset, to_python(box.local_strides));
}

nb::object to_python(const TensorKey& key) {
  return make("TensorKey", key.fqn, key.state);
}

nb::object to_python(const Gap& gap) {
  return make("Gap", gap.fqn, gap.state, to_python(gap.box), to_int(gap.target));
}

Keys::Keys()
    : new_(attribute("builtins", "tuple").attr("__new__")), class_(attribute("shardwire._types", "TensorKey")) {
}

nb::object Keys::of(const TensorKey& key) {
  if (!fqn_.is_valid() || key.fqn != last_) fqn_ = nb::cast(key.fqn), last_ = key.fqn;
  nb::object& state = states_[key.state];
  if (!state.is_valid()) state = nb::cast(key.state);
  return new_(class_, nb::make_tuple(fqn_, state));
}

nb::object Keys::info_of(const TensorSpec& spec) {
  nb::object& info = infos_[{spec.dtype, spec.shape}];
  if (!info.is_valid()) info = make("TensorInfo", to_string(spec.dtype), to_python(spec.shape));
  return info;
}

nb::list ranks_to_python(const std::vector<Rank>& ranks) {
  nb::list out;
  for (const Rank rank : ranks) out.append(to_int(rank));
  return out;
}

std::vector<Rank> ranks_from(const std::vector<int>& numbers) {
  std::vector<Rank> ranks;
  for (const int number : numbers) ranks.push_back(Rank{number});
  return ranks;
}

nb::bytes to_python(const Bytes& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

Bytes bytes_from(const nb::bytes& bytes) {
  const auto* begin = static_cast<const std::byte*>(bytes.data());
  return {begin, begin + bytes.size()};
}

Box box_from(nb::handle object) {
  const auto [offset, size] = nb::cast<std::pair<nb::object, nb::object>>(object);
  return {nb::cast<Numbers>(offset), nb::cast<Numbers>(size)};
}

}  // namespace shardwire::python
