// SPDX-License-Identifier: Apache-2.0
#include "serve/generation_words.hpp"

#include <atomic>
#include <new>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

using Word = std::atomic<std::uint64_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == sizeof(std::uint64_t));

constexpr ByteCount word_spacing = 64;  // one cache line each: readers of one word do not slow the writer of another
constexpr ByteCount words_bytes = 4096;

Word& word_at(const detail::RegisteredMemory& memory, ByteCount offset_bytes) {
  return *reinterpret_cast<Word*>(memory.memory().address + offset_bytes);
}

// Keeps earlier loads and stores before later ones.
void fence(std::memory_order order) {
#if defined(__SANITIZE_THREAD__)
  static Word word{0};  // the thread sanitizer does not support fences
  word.fetch_add(1, std::memory_order_acq_rel);
  static_cast<void>(order);
#else
  std::atomic_thread_fence(order);
#endif
}

}  // namespace

GenerationWords::~GenerationWords() {
  if (!memory_) return;
  for (ByteCount at = 0; at < words_bytes; at += word_spacing) word_at(*memory_, at).store(0);
  fence(std::memory_order_seq_cst);
}

std::optional<ByteCount> GenerationWords::set(std::uint64_t generation) {
  if (!opened_) {
    opened_ = true;
    try {
      memory_ = allocate_(words_bytes);
    } catch (const Error&) {
      return std::nullopt;  // readers then ask the source
    }
    for (ByteCount at = words_bytes; at > 0;) {
      at -= word_spacing;
      new (memory_->memory().address + at) Word(0);
      free_.push_back(at);
    }
  }
  if (free_.empty()) return std::nullopt;
  const ByteCount offset_bytes = free_.back();
  free_.pop_back();
  word_at(*memory_, offset_bytes).store(generation);
  return offset_bytes;
}

// A reader that sees a later write to the publication's memory also sees the cleared word.
void GenerationWords::clear(ByteCount offset_bytes) {
  word_at(*memory_, offset_bytes).store(0);
  fence(std::memory_order_seq_cst);
  free_.push_back(offset_bytes);
}

bool GenerationWord::says_live(std::uint64_t generation) const {
  if (!is_mapped()) return false;
  const auto* const word = reinterpret_cast<const Word*>(region->mapped().address + offset_bytes);
  fence(std::memory_order_acquire);
  return word->load(std::memory_order_relaxed) == generation;
}

}  // namespace shardwire
