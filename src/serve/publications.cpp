// SPDX-License-Identifier: Apache-2.0
#include "serve/publications.hpp"

#include <fmt/core.h>

#include <utility>

#include "serve/refusal.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

bool peers_can_look(const Fabrics& fabrics) {
  for (std::size_t i = 0; i < fabrics.size(); ++i) {
    const transport::Preference& preference = fabrics.row(i).preference;
    if (preference.map != 0 || preference.read != 0) return true;
  }
  return false;
}

}  // namespace

Publications::Publications(const Fabrics& fabrics, MemoryTable& memory) {
  if (peers_can_look(fabrics)) words_.emplace([&memory](ByteCount bytes) { return memory.allocate_unlisted(bytes); });
}

void Publications::add(std::shared_ptr<Publication> publication) {
  if (live_.contains(publication->name)) {
    refuse_request(fmt::format("'{}' is already published by this member; retire it first", publication->name));
  }
  if (live_.size() >= wire::max_names_of_member) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("'{}' would be name {} of this member, which may publish under {}: retire others first",
                            publication->name, live_.size() + 1, wire::max_names_of_member));
  }
  if (words_) publication->word = words_->set(publication->generation);
  const std::string name = publication->name;
  live_.emplace(name, std::move(publication));
}

void Publications::withdraw(Publication& publication) {
  publication.withdrawn = true;
  if (const auto word = std::exchange(publication.word, std::nullopt)) words_->clear(*word);
  const auto found = live_.find(publication.name);
  if (found != live_.end() && found->second.get() == &publication) live_.erase(found);
}

void Publications::replace(Publication& old, std::shared_ptr<Publication> fresh) {
  if (live(old.name).get() != &old) refuse_update(old.name);
  auto replaced = live_.extract(old.name);
  try {
    add(std::move(fresh));
  } catch (...) {
    live_.insert(std::move(replaced));
    throw;
  }
  withdraw(old);
}

std::shared_ptr<detail::PublicationState> Publications::live(const std::string& name) const {
  const auto found = live_.find(name);
  return found == live_.end() ? nullptr : found->second;
}

std::shared_ptr<detail::PublicationState> Publications::live(const std::string& name, std::uint64_t generation) const {
  const auto found = live(name);
  return found && found->generation == generation ? found : nullptr;
}

std::shared_ptr<detail::PublicationState> Publications::with_manifest(const wire::Digest& digest) const {
  for (const auto& [name, publication] : live_) {
    if (publication->described.manifest_digest == digest) return publication;
  }
  return nullptr;
}

std::shared_ptr<detail::PublicationState> Publications::with_values(const wire::Digest& digest) const {
  for (const auto& [name, publication] : live_) {
    if (publication->described.values_digest == digest) return publication;
  }
  return nullptr;
}

}  // namespace shardwire
