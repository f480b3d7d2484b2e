// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <string>

#include "schema/common.capnp.h"
#include "wire/messages.hpp"

namespace shardwire::wire {

inline capnp::Text::Reader text_of(const std::string& text) {
  return {text.c_str(), text.size()};
}
inline capnp::Data::Reader data_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
void write_digest(schema::Digest::Builder out, const Digest& digest);

/// box_at(i) returns box i of `count`.
template <typename BoxAt>
void write_boxes(schema::Boxes::Builder out, std::size_t count, BoxAt&& box_at) {
  auto dims = out.initDims(static_cast<unsigned>(count));
  unsigned total = 0;
  for (unsigned i = 0; i < count; ++i) {
    const Box& box = box_at(i);
    if (box.offset.size() != box.size.size()) {
      throw Error(ErrorCode::invalid_argument, "box whose offset and size differ in dims");
    }
    dims.set(i, static_cast<std::uint8_t>(box.dims()));
    total += 2 * static_cast<unsigned>(box.dims());
  }
  auto values = out.initValues(total);
  unsigned next = 0;
  for (unsigned i = 0; i < count; ++i) {
    const Box& box = box_at(i);
    for (const Extent extent : box.offset) values.set(next++, extent);
    for (const Extent extent : box.size) values.set(next++, extent);
  }
}

template <typename ListBuilder, typename Values>
void fill(ListBuilder out, const Values& values) {
  unsigned next = 0;
  for (const auto& value : values) out.set(next++, value);
}

/// Runs `write`; an error of Cap'n Proto becomes Error{invalid_argument}, as does a result that no peer would accept.
template <typename Write>
Bytes guarded_encode(const char* what, Write&& write) {
  try {
    const kj::Array<capnp::word> words = write();
    const auto bytes = words.asBytes();
    if (bytes.size() > max_message_bytes) {
      throw Error(ErrorCode::invalid_argument, std::string(what) + " is too large for one message");
    }
    const auto* first = reinterpret_cast<const std::byte*>(bytes.begin());
    return {first, first + bytes.size()};
  } catch (const kj::Exception& error) {
    throw Error(ErrorCode::invalid_argument,
                std::string(what) + " cannot be encoded: " + error.getDescription().cStr());
  }
}

/// write(root builder) fills the message; stream framing.
template <typename Root, typename Write>
Bytes encode_framed(const char* what, Write&& write) {
  return guarded_encode(what, [&] {
    capnp::MallocMessageBuilder builder;
    write(builder.initRoot<Root>());
    return capnp::messageToFlatArray(builder);
  });
}

/// The canonical form: one segment without a frame, equal for equal content. Plain Cap'n Proto bytes are not.
template <typename Root, typename Write>
Bytes encode_canonical(const char* what, Write&& write) {
  return guarded_encode(what, [&] {
    capnp::MallocMessageBuilder builder;
    auto root = builder.initRoot<Root>();
    write(root);
    return capnp::canonicalize(root.asReader());
  });
}

/// The bytes that the proof of the job key covers.
Bytes canonical_hello(const Hello& hello);

}  // namespace shardwire::wire
