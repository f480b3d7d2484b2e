// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "paths/fabrics.hpp"
#include "serve/generation_words.hpp"
#include "serve/publication.hpp"

namespace shardwire {

/// The live publications of this member, by name, with their generation words.
/// Threads: loop thread only.
class Publications {
 public:
  using Publication = detail::PublicationState;

  Publications(const Fabrics& fabrics, MemoryTable& memory);

  /// Errors: throws Error{invalid_argument} if a publication of that name is still live, Error{out_of_resources} if there
  ///         are too many names.
  void add(std::shared_ptr<Publication> publication);
  /// Peers see it as withdrawn from now on. A publication that is not live any more stays so.
  void withdraw(Publication& publication);
  /// Withdraws `old` and adds `fresh`, which has the same name.
  /// Errors: throws Error{invalid_argument} if `old` is not live; nothing changes then.
  void replace(Publication& old, std::shared_ptr<Publication> fresh);

  /// Null: there is none.
  [[nodiscard]] std::shared_ptr<Publication> live(const std::string& name) const;
  [[nodiscard]] std::shared_ptr<Publication> live(const std::string& name, std::uint64_t generation) const;
  [[nodiscard]] std::shared_ptr<Publication> with_manifest(const wire::Digest& digest) const;
  [[nodiscard]] std::shared_ptr<Publication> with_values(const wire::Digest& digest) const;

  /// The memory of the generation words. Requires: a publication has a word.
  [[nodiscard]] const detail::RegisteredMemory& words() const { return words_->memory(); }

 private:
  std::optional<GenerationWords> words_;                      // if peers can map or read memory of this process
  std::map<std::string, std::shared_ptr<Publication>> live_;  // owners: see Publication handle
};

}  // namespace shardwire
