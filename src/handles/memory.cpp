// SPDX-License-Identifier: Apache-2.0
#include "shardwire/memory.hpp"

#include <utility>

#include "serve/memory_table.hpp"
#include "support/handle.hpp"

namespace shardwire {

Arena::Arena() = default;
Arena::~Arena() = default;
Arena::Arena(Arena&&) noexcept = default;
Arena& Arena::operator=(Arena&&) noexcept = default;
Arena::Arena(std::shared_ptr<detail::RegisteredMemory> state) : state_(std::move(state)) {
}

std::byte* Arena::data() const {
  return detail::checked(state_, "arena").memory().address;
}
ByteCount Arena::size_bytes() const {
  return detail::checked(state_, "arena").memory().bytes;
}

ByteCount Arena::discard(ByteCount offset_bytes, ByteCount bytes) {
  return detail::checked(state_, "arena").discard(offset_bytes, bytes);
}

Registration::Registration() = default;
Registration::~Registration() = default;
Registration::Registration(Registration&&) noexcept = default;
Registration& Registration::operator=(Registration&&) noexcept = default;
Registration::Registration(std::shared_ptr<detail::RegistrationState> state) : state_(std::move(state)) {
}

ByteCount Registration::size_bytes() const {
  return detail::checked(state_, "registration").memory()->memory().bytes;
}

}  // namespace shardwire
