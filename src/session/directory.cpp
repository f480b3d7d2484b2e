// SPDX-License-Identifier: Apache-2.0
#include "session/directory.hpp"

#include <fmt/core.h>

#include <charconv>

#include "session/rendezvous.hpp"

namespace shardwire {

namespace {

struct Key {
  std::string_view kind;
  std::string name;
  int rank = 0;
};

// "member/3", "publication/<name>/3": the name may itself contain slashes.
Key parse_key(const std::string& key) {
  const auto first = key.find('/');
  const auto last = key.rfind('/');
  Key result;
  const char* end = key.data() + key.size();
  const auto number = last == std::string::npos ? std::from_chars_result{end, std::errc::invalid_argument}
                                                : std::from_chars(key.data() + last + 1, end, result.rank);
  if (number.ec != std::errc() || number.ptr != end || result.rank < 0) {
    throw Error(ErrorCode::transport_failed, fmt::format("the store sent an unknown key '{}'", key));
  }
  result.kind = std::string_view(key).substr(0, first);
  if (last > first) result.name = key.substr(first + 1, last - first - 1);
  return result;
}

}  // namespace

void Directory::apply(const wire::StoreEntry& entry) {
  const Key key = parse_key(entry.key);
  if (key.kind == "member") {
    members_[key.rank] = wire::decode_member(entry.value);
  } else if (key.kind == "publication") {
    publications_[key.name][key.rank] = wire::decode_publication(entry.value);
  } else if (key.kind == "gather") {
    gathers_[key.name][key.rank] = entry.value;
  } else if (key.kind == "lost") {
    const std::string text(reinterpret_cast<const char*>(entry.value.data()), entry.value.size());
    std::uint64_t incarnation = 0;
    const auto number = std::from_chars(text.data(), text.data() + text.size(), incarnation);
    if (number.ec != std::errc()) throw Error(ErrorCode::transport_failed, "the store sent an unreadable departure");
    departed_[key.rank] = {incarnation, text.ends_with("left") ? Departure::left : Departure::lost};
  } else {
    throw Error(ErrorCode::transport_failed, fmt::format("the store sent an unknown key '{}'", entry.key));
  }
}

const wire::MemberRecord* Directory::member(int rank) const {
  const auto found = members_.find(rank);
  return found == members_.end() ? nullptr : &found->second;
}

std::optional<Directory::Departure> Directory::departed(int rank) const {
  const auto found = departed_.find(rank);
  if (found == departed_.end()) return std::nullopt;
  const auto* record = member(rank);
  if (record != nullptr && record->incarnation != found->second.first) return std::nullopt;
  return found->second.second;
}

std::vector<wire::PublicationRecord> Directory::publications(const std::string& name) const {
  std::vector<wire::PublicationRecord> result;
  const auto found = publications_.find(name);
  if (found == publications_.end()) return result;
  for (const auto& [rank, record] : found->second) {
    const auto* holder = member(rank);
    const bool present = holder != nullptr && holder->incarnation == record.incarnation && !departed(rank);
    if (record.live && record.member == rank && present) result.push_back(record);
  }
  return result;
}

const std::map<int, Bytes>& Directory::gathered(const std::string& name) const {
  static const std::map<int, Bytes> none;
  const auto found = gathers_.find(name);
  return found == gathers_.end() ? none : found->second;
}

std::vector<int> Directory::lost_members() const {
  std::vector<int> result;
  for (const auto& [rank, departure] : departed_) {
    if (departed(rank) == Departure::lost) result.push_back(rank);
  }
  return result;
}

}  // namespace shardwire
