// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <ctime>
#include <functional>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(hostile)

using namespace samples;

namespace {

struct Target {
  std::string name;
  Bytes bytes;
  std::function<void(std::span<const std::byte>)> read;  // decodes, and encodes the result again
};

std::vector<Target> targets(Maker& maker) {
  std::vector<Target> result;
  for (const Message& message : maker.messages()) {
    result.push_back(
        {fmt::format("message {}", message.index()), encode(message), [](auto bytes) { (void)encode(decode(bytes)); }});
  }
  const auto reread_manifest = [](std::span<const std::byte> bytes) {
    const Manifest manifest = decode_manifest(bytes);
    BOOST_CHECK(std::ranges::equal(encode_manifest(manifest), bytes));
    for (const auto& [spec, layout] : manifest.tensors) (void)layout.boxes_of(spec.shape, Rank{0});
  };
  result.push_back({"manifest", encode_manifest(maker.manifest(9)), reread_manifest});
  result.push_back({"values", encode_values(maker.values()), [](std::span<const std::byte> bytes) {
                      BOOST_CHECK(std::ranges::equal(encode_values(decode_values(bytes)), bytes));
                    }});
  result.push_back({"exchange note", encode_exchange_note(maker.exchange_note()),
                    [](std::span<const std::byte> bytes) { (void)encode_exchange_note(decode_exchange_note(bytes)); }});
  return result;
}

// Of this thread, since a busy machine gives it little.
std::chrono::nanoseconds processor_time() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

/// Whether reading succeeds; it must otherwise end in the one typed error, and must not take long.
bool accepted(const Target& target, std::span<const std::byte> bytes) {
  const auto start = processor_time();
  bool done = false;
  try {
    target.read(bytes);
    done = true;
  } catch (const Error& error) {
    BOOST_CHECK_MESSAGE(error.code() == ErrorCode::transport_failed, target.name << ": " << error.what());
  }
  BOOST_CHECK_MESSAGE(processor_time() - start < std::chrono::seconds(5), target.name << " is slow");
  return done;
}

// --- hand-made words, for messages that no encoder writes ---
using Words = std::vector<std::uint64_t>;

std::uint64_t struct_pointer(std::uint64_t offset, std::uint64_t data, std::uint64_t pointers) {
  return offset << 2 | data << 32 | pointers << 48;
}
enum class Width : std::uint64_t { none = 0, byte = 2, word = 5, composite = 7 };
std::uint64_t list_pointer(std::int64_t offset, Width width, std::uint64_t count) {
  return (static_cast<std::uint64_t>(offset) << 2 & 0xffffffff) | 1 | static_cast<std::uint64_t>(width) << 32 |
         count << 35;
}
Bytes bytes_of(const Words& words) {
  Bytes bytes(8 * words.size());
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}
/// Message of the given kind around the words of its body; the body starts with its data words.
Bytes framed(std::uint16_t kind, std::uint64_t data, std::uint64_t pointers, const Words& body) {
  Words words{(3 + body.size()) << 32, struct_pointer(0, 1, 1), kind, struct_pointer(0, data, pointers)};
  words.insert(words.end(), body.begin(), body.end());
  return bytes_of(words);
}
constexpr std::uint16_t lease_kind = 7;
constexpr std::uint16_t pack_kind = 13;
constexpr std::uint16_t digests_kind = 15;
constexpr std::uint64_t most = (1u << 29) - 1;

void check_refused(const Bytes& bytes) {
  const auto start = processor_time();
  BOOST_CHECK_EXCEPTION((void)decode(bytes), Error,
                        [](const Error& error) { return error.code() == ErrorCode::transport_failed; });
  BOOST_CHECK(processor_time() - start < std::chrono::seconds(1));
}

}  // namespace

BOOST_AUTO_TEST_CASE(truncation_at_every_word_is_refused_or_valid) {
  Maker maker(test_seed());
  for (const Target& target : targets(maker)) {
    BOOST_CHECK_MESSAGE(accepted(target, target.bytes), target.name);
    for (std::size_t size = 0; size < target.bytes.size(); size += 8) {
      // Framed messages contain their size; truncating a canonical one always changes its meaning.
      BOOST_CHECK_MESSAGE(!accepted(target, std::span(target.bytes).first(size)), target.name << " cut to " << size);
    }
  }
}

BOOST_AUTO_TEST_CASE(flipped_bits_are_refused_or_valid) {
  Maker maker(test_seed());
  for (int round = 0; round < 10; ++round) {
    for (const Target& target : targets(maker)) {
      for (int i = 0; i < 100; ++i) {
        Bytes bytes = target.bytes;
        for (std::uint64_t flips = 1 + maker.below(4); flips > 0; --flips) {
          // Half of them near the front, where the pointers are.
          const std::uint64_t range = maker.below(2) == 0 ? std::min<std::size_t>(bytes.size(), 128) : bytes.size();
          bytes[maker.below(range)] ^= static_cast<std::byte>(1u << maker.below(8));
        }
        (void)accepted(target, bytes);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(random_words_are_refused_or_valid) {
  Maker maker(test_seed());
  for (const Target& target : targets(maker)) {
    for (int i = 0; i < 200; ++i) {
      Bytes bytes = target.bytes;
      const std::size_t at = 8 * maker.below(bytes.size() / 8);
      const std::uint64_t word = maker.word() >> maker.below(64);
      std::memcpy(bytes.data() + at, &word, 8);
      (void)accepted(target, bytes);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_list_longer_than_its_message_is_refused) {
  check_refused(framed(digests_kind, 1, 1, {1, list_pointer(0, Width::word, most)}));
  check_refused(framed(pack_kind, 2, 2, {1, 1, list_pointer(1, Width::word, most), 0}));
}

BOOST_AUTO_TEST_CASE(a_list_of_elements_without_size_is_refused) {
  check_refused(framed(digests_kind, 1, 1, {1, list_pointer(0, Width::none, most)}));
  // Structs of zero words: the claim costs the sender one word.
  const std::uint64_t tag = most << 2;
  check_refused(framed(lease_kind, 2, 2, {1, 1, 0, list_pointer(0, Width::composite, 0), tag}));
}

BOOST_AUTO_TEST_CASE(ranges_that_share_one_list_of_boxes_are_refused) {
  const std::uint64_t ranges = 4000;
  const std::uint64_t boxes = 8000;  // without dims: one byte each
  Words body{1, 1, 0, list_pointer(0, Width::composite, 2 * ranges), ranges << 2 | struct_pointer(0, 1, 1)};
  const std::size_t shared = body.size() + 2 * ranges;  // position of the one Boxes struct
  for (std::uint64_t i = 0; i < ranges; ++i) {
    body.push_back(i);
    body.push_back(struct_pointer(shared - body.size() - 1, 0, 2));
  }
  body.push_back(list_pointer(1, Width::byte, boxes));
  body.push_back(0);
  body.resize(body.size() + boxes / 8);
  check_refused(framed(lease_kind, 2, 2, body));
}

BOOST_AUTO_TEST_CASE(rules_that_contain_themselves_are_refused) {
  // Root of a canonical manifest: 1 data word (ranks), 5 pointers; the rules are its fourth.
  Words words{struct_pointer(0, 1, 5), 2, 0, 0, 0, list_pointer(1, Width::composite, 3), 0};
  words.push_back(1u << 2 | struct_pointer(0, 0, 3));                        // one rule: kind, fields, inner
  words.insert(words.end(), {0, 0, list_pointer(-4, Width::composite, 3)});  // inner: the list that contains it
  BOOST_CHECK_EXCEPTION((void)decode_manifest(bytes_of(words)), Error, [](const Error& error) {
    return error.code() == ErrorCode::transport_failed && std::string(error.what()).find("Manifest.rules") < 64;
  });
}

constexpr std::uint64_t item_list_kind = 8;
constexpr std::uint64_t item_tuple_kind = 9;
constexpr std::uint64_t item_map_kind = 10;
constexpr std::size_t kind_of_value = 5;  // its place in what values_of() gives

/// Values without names whose one distinct value is the list, tuple or map that `list` points to.
Words values_of(std::uint64_t list, std::uint64_t kind = item_list_kind) {
  // Root: no data, pointers to names, states and distinct values. The value: a data word (kind) and a pointer.
  return {struct_pointer(0, 0, 3),           0,    0,   list_pointer(0, Width::composite, 2),
          1u << 2 | struct_pointer(0, 1, 1), kind, list};
}

void check_values_refused(const Words& words, const std::string& part) {
  const auto start = processor_time();
  BOOST_CHECK_EXCEPTION((void)decode_values(bytes_of(words)), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    BOOST_TEST(std::string(error.what()).find(part) != std::string::npos);
    return error.code() == ErrorCode::transport_failed;
  });
  BOOST_CHECK(processor_time() - start < std::chrono::seconds(1));
}

BOOST_AUTO_TEST_CASE(lists_inside_lists_past_the_limit_are_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 2));
  for (std::size_t depth = 0; depth <= max_value_depth; ++depth) {
    // One item: a data word and a pointer to the next list.
    words.insert(words.end(),
                 {1u << 2 | struct_pointer(0, 1, 1), item_list_kind, list_pointer(0, Width::composite, 2)});
  }
  words.insert(words.end(), {1u << 2 | struct_pointer(0, 1, 1), 1, 0});
  check_values_refused(words, "nests lists, tuples or maps more than 16 deep");
  words[kind_of_value] = item_tuple_kind;
  check_values_refused(words, "nests lists, tuples or maps more than 16 deep");
}

BOOST_AUTO_TEST_CASE(maps_inside_maps_past_the_limit_are_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 2), item_map_kind);
  for (std::size_t depth = 0; depth <= max_value_depth; ++depth) {
    // One pair without a key: a pointer to its item, which is a kind and a pointer to the next map.
    words.insert(words.end(), {1u << 2 | struct_pointer(0, 0, 2), 0, struct_pointer(0, 1, 1), item_map_kind,
                               list_pointer(0, Width::composite, 2)});
  }
  words.insert(words.end(), {1u << 2 | struct_pointer(0, 0, 2), 0, 0});
  check_values_refused(words, "nests lists, tuples or maps more than 16 deep");
}

BOOST_AUTO_TEST_CASE(a_map_that_contains_itself_is_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 2), item_map_kind);
  words.insert(words.end(), {1u << 2 | struct_pointer(0, 0, 2), 0, struct_pointer(0, 1, 1), item_map_kind,
                             list_pointer(-5, Width::composite, 2)});
  check_values_refused(words, "Values.distinct[0]");
}

BOOST_AUTO_TEST_CASE(pairs_without_a_key_or_a_value_are_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 4), item_map_kind);
  words.insert(words.end(),
               {2u << 2 | struct_pointer(0, 0, 2), 0, struct_pointer(2, 1, 0), 0, struct_pointer(1, 1, 0)});
  words.insert(words.end(), {1, 1});  // two items, both None
  check_values_refused(words, "a key out of order or repeated");
  words = values_of(list_pointer(0, Width::composite, 0), item_map_kind);
  words.push_back(3u << 2);
  check_values_refused(words, "unknown kind 0");
  words.back() = ((1u << 29) - 1) << 2;
  check_values_refused(words, "Values.distinct[0]");
}

BOOST_AUTO_TEST_CASE(a_list_that_contains_itself_is_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 2));
  words.insert(words.end(), {1u << 2 | struct_pointer(0, 1, 1), item_list_kind, list_pointer(-3, Width::composite, 2)});
  check_values_refused(words, "Values.distinct[0]");
}

BOOST_AUTO_TEST_CASE(lists_that_share_their_items_are_refused) {
  // 4,000 lists, each the same 8,000 items: 32 million values from 130 KB.
  const std::uint64_t lists = 4000;
  const std::uint64_t items = 8000;
  Words words = values_of(list_pointer(0, Width::composite, 2 * lists));
  words.push_back(lists << 2 | struct_pointer(0, 1, 1));
  const std::size_t shared = words.size() + 2 * lists;
  for (std::uint64_t i = 0; i < lists; ++i) {
    words.push_back(item_list_kind);
    words.push_back(list_pointer(static_cast<std::int64_t>(shared - words.size() - 1), Width::composite, items));
  }
  words.push_back(items << 2 | struct_pointer(0, 1, 0));
  words.insert(words.end(), items, 1);
  check_values_refused(words, "Values.distinct[0]");
}

BOOST_AUTO_TEST_CASE(a_list_of_items_without_size_is_refused) {
  Words words = values_of(list_pointer(0, Width::composite, 0));
  words.push_back(((1u << 29) - 1) << 2);
  check_values_refused(words, "Values.distinct[0]");
  words.back() = 3u << 2;  // few items, but no item is all zeros
  check_values_refused(words, "unknown kind 0");
}

BOOST_AUTO_TEST_SUITE_END()
