// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "schema/common.capnp.h"
#include "wire/limits.hpp"
#include "wire/messages.hpp"

namespace shardwire::wire {

/// One untrusted message while it is being read. Holds its words, the budgets that bound the reader, and the name of
/// the current field, so that every error, also one inside Cap'n Proto, is reported with that field. Every getter of a
/// pointer field is called once: the traversal limit allows little more than one pass.
class Input {
 public:
  /// Errors: throws Error{transport_failed} for a size that no message has.
  Input(const char* message, std::span<const std::byte> bytes);

  /// Sets the name of the field that the next calls read. The call chain `in.at("A.b").name(a.getB(), ..)` sets the
  /// name before the getter runs (C++17 sequences the object of a call before its arguments).
  Input& at(const char* field);
  Input& at(const char* field, std::size_t index);
  [[noreturn]] void reject(const std::string& why) const;

  [[nodiscard]] std::string name(capnp::Text::Reader text, std::size_t max_bytes) const;
  [[nodiscard]] Bytes data(capnp::Data::Reader bytes, std::size_t max_bytes) const;
  /// In place, of bytes with a form of their own.
  [[nodiscard]] std::span<const std::byte> view(capnp::Data::Reader bytes) const {
    return {reinterpret_cast<const std::byte*>(bytes.begin()), bytes.size()};
  }
  [[nodiscard]] std::int32_t rank(std::int32_t value) const;
  /// A rank, or no_member.
  [[nodiscard]] std::int32_t rank_or_none(std::int32_t value) const { return value == no_member ? value : rank(value); }
  [[nodiscard]] std::uint32_t attempt(std::uint32_t value) const;
  [[nodiscard]] DType dtype(std::uint32_t number) const;
  [[nodiscard]] Extents shape(capnp::List<std::int64_t>::Reader extents) const;
  [[nodiscard]] Digest digest(schema::Digest::Reader digest) const;
  /// Draws on max_boxes_per_message.
  [[nodiscard]] std::vector<Box> boxes(schema::Boxes::Reader boxes);
  void check_box(const Box& box) const;

  /// Returns its argument: sets the field's name before its getter runs.
  template <typename Reader>
  [[nodiscard]] Reader pass(Reader reader) const {
    return reader;
  }
  /// Returns a list of structs or pointers if its length is plausible: each element takes at least a word.
  template <typename List>
  [[nodiscard]] List list(List list, std::size_t max_count = max_boxes_per_message) const {
    check_count(list.size(), max_count, words_.size());
    return list;
  }
  /// The same for numbers, of which 8 may share a word.
  template <typename List>
  [[nodiscard]] List numbers(List list, std::size_t max_count) const {
    check_count(list.size(), max_count, 8 * words_.size());
    return list;
  }

  [[nodiscard]] kj::ArrayPtr<const capnp::word> words() const { return words_; }
  [[nodiscard]] capnp::ReaderOptions options() const;

  /// Runs `read` and converts every failure to Error{transport_failed}.
  template <typename Read>
  auto guarded(Read&& read) const -> decltype(read()) {
    try {
      return read();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::transport_failed) throw;
      reject(error.what());
    } catch (const kj::Exception& error) {
      reject(std::string("is malformed: ") + error.getDescription().cStr());
    } catch (const std::exception& error) {
      reject(error.what());
    }
  }

 private:
  void check_count(std::size_t count, std::size_t max_count, std::size_t max_for_size) const;

  const char* field_;
  std::optional<std::size_t> index_;
  std::size_t boxes_left_ = max_boxes_per_message;
  kj::Array<capnp::word> copy_;  // only of input that is not aligned
  kj::ArrayPtr<const capnp::word> words_;
};

/// Reads a message in the stream framing of Cap'n Proto. read(root, input) builds the value.
template <typename Root, typename Read>
auto read_framed(const char* message, std::span<const std::byte> bytes, Read&& read) {
  Input in(message, bytes);
  return in.guarded([&] {
    capnp::FlatArrayMessageReader reader(in.words(), in.options());
    if (reader.getEnd() != in.words().end()) in.reject("is followed by other bytes");
    return read(reader.template getRoot<Root>(), in);
  });
}

/// Reads a message in canonical form: one segment, no frame.
template <typename Root, typename Read>
auto read_canonical(const char* message, std::span<const std::byte> bytes, Read&& read) {
  Input in(message, bytes);
  return in.guarded([&] {
    const kj::ArrayPtr<const capnp::word> segment = in.words();
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1), in.options());
    return read(reader.template getRoot<Root>(), in);
  });
}

}  // namespace shardwire::wire
