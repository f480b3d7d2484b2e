// SPDX-License-Identifier: Apache-2.0
// Every method, forced in turn on the same random cases, writes the same bytes and nothing else.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "support/job.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(methods)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr int members = 4;
constexpr std::byte guard{0xa5};
constexpr ByteCount one_item = 8;  // the largest element

// Positions of one tensor's elements on one rank, derived from the meaning of its layout, not from its boxes.
struct Place {
  struct Element {
    ElementCount index = 0;  // global, row-major
    ByteCount at = 0;        // byte offset into the member's buffer
  };
  std::vector<Element> elements;
  ByteCount data = 0;       // offset of View::data
  ElementCount offset = 0;  // View::offset
  Extents strides;          // View::strides
};
struct Side {
  Layout layout = Layout::replicated();
  std::vector<Place> places;  // indexed by rank
};
struct Tensor {
  TensorSpec spec;
  bool arena = false;
  Side from;
  Side to;
};
struct Case {
  std::vector<Tensor> tensors;
  std::vector<ByteCount> from_bytes;  // size of each member's buffer
  std::vector<ByteCount> to_bytes;
  bool arena_target = false;
  Verify verify = Verify::generation;
  ByteCount staging = 0;
  ByteCount wanted_elements = 0;
};

std::byte value_at(std::size_t tensor, ElementCount index, ByteCount byte) {
  std::uint64_t mix =
      (tensor + 1) * 0x9e3779b97f4a7c15ULL ^ (static_cast<std::uint64_t>(index) + 1) * 0xd1b54a32d192ed03ULL;
  mix ^= mix >> 29;
  return static_cast<std::byte>(mix >> (8 * byte));
}

// A random view for layouts whose ranks hold one array: dims in any order, with gaps and an offset. Other layouts
// define their own positions.
Place random_place(Random& random, const Extents& shape, ByteCount item, const Meaning& meaning, int rank,
                   ByteCount& next) {
  Place place;
  const Slots slots = meaning.slots(shape, rank);
  const Lists lists = meaning.lists && !shape.empty() ? meaning.lists(shape, rank) : std::nullopt;
  next += static_cast<ByteCount>(pick(random, 1, 9));
  next = (next + item - 1) / item * item;  // aligned for any element
  place.data = next;
  const bool strided = lists && !slots.empty() && pick(random, 0, 2) != 0;
  if (strided) {
    const Extents sizes = sizes_of(*lists);
    std::vector<int> order = row_major(shape.size());
    if (pick(random, 0, 1) == 0) std::shuffle(order.begin(), order.end(), random);
    place.strides = Extents::filled(shape.size(), 0);
    Extent stride = pick(random, 0, 1) == 0 ? 1 : pick(random, 2, 3);
    for (std::size_t i = order.size(); i-- > 0;) {
      const auto dim = static_cast<std::size_t>(order[i]);
      place.strides[dim] = stride;
      stride = stride * std::max<Extent>(1, sizes[dim]) + pick(random, 0, 2);
    }
    place.offset = pick(random, 0, 3);
  }
  ElementCount furthest = 0;
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    ElementCount local = static_cast<ElementCount>(slot);
    if (strided) {
      const Extents sizes = sizes_of(*lists);
      ElementCount rest = local;
      local = place.offset;
      for (std::size_t dim = shape.size(); dim-- > 0;) {
        local += rest % sizes[dim] * place.strides[dim];
        rest /= sizes[dim];
      }
    }
    furthest = std::max(furthest, local);
    place.elements.push_back({slots[slot], place.data + static_cast<ByteCount>(local) * item});
  }
  next +=
      (static_cast<ByteCount>(std::max<ElementCount>(furthest, static_cast<ElementCount>(slots.size()))) + 1) * item;
  return place;
}

Side random_side(Random& random, const TensorSpec& spec, bool covers, std::vector<ByteCount>& next) {
  const auto volume = static_cast<std::size_t>(Box::whole(spec.shape).volume());
  Sample sample{Layout::replicated(), mean_replicated()};
  for (int attempt = 0; attempt < 20; ++attempt) {
    Sample candidate = random_sample(random, spec.shape, members);
    std::set<ElementCount> held;
    for (int rank = 0; rank < members; ++rank) {
      for (const ElementCount slot : candidate.meaning.slots(spec.shape, rank)) {
        if (slot >= 0) held.insert(slot);
      }
    }
    if (covers && held.size() != volume) continue;
    sample = std::move(candidate);
    break;
  }
  Side side;
  side.layout = sample.layout;
  for (int rank = 0; rank < members; ++rank) {
    side.places.push_back(random_place(random, spec.shape, item_size(spec.dtype), sample.meaning, rank,
                                       next[static_cast<std::size_t>(rank)]));
  }
  return side;
}

Case random_case(Random& random) {
  constexpr DType dtypes[] = {DType::u8,  DType::f8e4m3, DType::boolean, DType::bf16,
                              DType::f32, DType::f64,    DType::i64};
  Case result;
  result.from_bytes.assign(members, 0);
  result.to_bytes.assign(members, 0);
  const int memory = pick(random, 0, 2);  // in arenas, in ordinary memory, some in each
  result.arena_target = pick(random, 0, 1) == 0;
  result.verify = pick(random, 0, 1) == 0 ? Verify::generation : Verify::digest;
  const int tensors = pick(random, 1, 4);
  while (static_cast<int>(result.tensors.size()) < tensors) {
    Tensor tensor;
    tensor.spec.key = {"t" + std::to_string(result.tensors.size()), "exp_avg"};
    tensor.spec.dtype = dtypes[pick(random, 0, 6)];
    tensor.spec.shape = random_shape(random);
    if (Box::whole(tensor.spec.shape).volume() == 1) continue;  // it would travel as a value
    tensor.arena = memory == 0 || (memory == 2 && pick(random, 0, 1) == 0);
    tensor.from = random_side(random, tensor.spec, true, result.from_bytes);
    tensor.to = random_side(random, tensor.spec, false, result.to_bytes);
    for (const Place& place : tensor.to.places) result.wanted_elements += place.elements.size();
    result.tensors.push_back(std::move(tensor));
  }
  // Slots for one element, an odd size, one small slot, several slots.
  constexpr ByteCount budgets[] = {one_item, 61, 4096, 64 << 10, 1 << 20};
  result.staging = budgets[pick(random, result.wanted_elements > 2000 ? 2 : 0, 4)];
  return result;
}

// A member's memory on one side: an ordinary buffer and an arena with the same offsets; each tensor lies in one of
// them.
struct Buffers {
  std::vector<std::byte> ordinary;
  std::byte* arena = nullptr;
  [[nodiscard]] std::byte* of(bool in_arena) { return in_arena ? arena : ordinary.data(); }
};

Catalog catalog_of(const Case& one, int rank, bool source, Buffers& buffers) {
  Catalog catalog(Rank{rank}, members);
  for (const Tensor& tensor : one.tensors) {
    const Side& side = source ? tensor.from : tensor.to;
    const Place& place = side.places[static_cast<std::size_t>(rank)];
    View view{.data = buffers.of(source ? tensor.arena : one.arena_target) + place.data};
    view.strides = place.strides;
    view.offset = place.offset;
    catalog.add(tensor.spec, side.layout, view);
  }
  return catalog;
}

void store(const Case& one, int rank, bool source, std::size_t tensor, std::byte* memory) {
  const Side& side = source ? one.tensors[tensor].from : one.tensors[tensor].to;
  for (const Place::Element& element : side.places[static_cast<std::size_t>(rank)].elements) {
    for (ByteCount byte = 0; byte < item_size(one.tensors[tensor].spec.dtype); ++byte) {
      memory[element.at + byte] = value_at(tensor, element.index, byte);
    }
  }
}

// Number of bytes that `rank` wants and does not hold itself; `ordinary_only` selects tensors.
ByteCount remote_bytes(const Case& one, int rank, bool ordinary_only) {
  ByteCount bytes = 0;
  for (const Tensor& tensor : one.tensors) {
    if (ordinary_only && tensor.arena) continue;
    std::set<ElementCount> held;
    for (const auto& element : tensor.from.places[static_cast<std::size_t>(rank)].elements) held.insert(element.index);
    for (const auto& element : tensor.to.places[static_cast<std::size_t>(rank)].elements) {
      if (!held.contains(element.index)) bytes += item_size(tensor.spec.dtype);
    }
  }
  return bytes;
}

struct Used {
  std::atomic<ByteCount> sieved_read = 0;
  std::atomic<ByteCount> by_method[method_count] = {};
  std::atomic<int> refused = 0;
};

void check_methods(const RestoreReport& report, std::optional<RestoreMethod> method) {
  ByteCount all = 0;
  report.methods.each([&](Method, const MethodReport& row) { all += row.bytes; });
  const auto by = [&](Method one) { return report.methods[one].bytes; };
  require(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes,
          "what came is what was needed, and the gaps");
  require(report.resent_bytes == 0, "nothing came twice");
  require(all == report.moved_bytes + report.local_bytes, "the methods add up");
  require(by(Method::local) == report.local_bytes, "the local method is what is local");
  require(report.overread_bytes <= report.needed_bytes, "gaps no more than double what comes");
  require(report.overread_bytes == 0 || by(Method::sieved_read) > report.overread_bytes,
          "only reading across gaps brings them along");
  require(report.staging_peak_bytes <= report.staging_budget_bytes, "staging stayed within its budget");
  if (!method) return;
  switch (*method) {
    case RestoreMethod::sieved_read:
      require(by(Method::sieved_read) + by(Method::read) == report.moved_bytes, "sieved_read, or read");
      break;
    case RestoreMethod::mapped:
    case RestoreMethod::read:
    case RestoreMethod::zcopy:
    case RestoreMethod::packed:
      require(by(to_method(*method)) == report.moved_bytes, std::string(to_string(to_method(*method))));
      break;
  }
}

bool is_possible(const Case& one, int rank, RestoreMethod method) {
  const ByteCount ordinary = remote_bytes(one, rank, true);
  switch (method) {
    case RestoreMethod::mapped: return maps_arenas() ? ordinary == 0 : remote_bytes(one, rank, false) == 0;
    case RestoreMethod::read:
    case RestoreMethod::sieved_read:
      return reads_ordinary_memory() || (reads_arenas() ? ordinary == 0 : remote_bytes(one, rank, false) == 0);
    case RestoreMethod::zcopy:
    case RestoreMethod::packed: return true;
  }
  return false;
}

void restore_by(Session& session, const Case& one, int rank, const std::string& name,
                std::optional<RestoreMethod> asked, Buffers& target, Used& used) {
  const auto size = static_cast<std::size_t>(one.to_bytes[static_cast<std::size_t>(rank)]);
  std::byte* const memory = target.of(one.arena_target);
  std::fill_n(memory, size, guard);
  std::vector<std::byte> expected(size, guard);
  for (std::size_t i = 0; i < one.tensors.size(); ++i) store(one, rank, false, i, expected.data());
  RestoreOptions options = within(patience);
  options.name = name;
  options.staging_bytes = one.staging;
  options.verify = one.verify;
  options.method = asked;
  const auto method = asked ? std::optional(to_method(*asked)) : std::nullopt;
  const std::string called = name + " by " + (method ? std::string(to_string(*method)) : "any method");
  try {
    Restore restore = session.restore(catalog_of(one, rank, false, target), options);
    if (asked && !is_possible(one, rank, *asked)) {
      const Error error = failure_of([&] { restore.wait(); });
      require(error.code() == ErrorCode::unsupported &&
                  says(error,
                       fmt::format("the method '{}', which the caller has chosen, cannot move ", to_string(*method))),
              error.what());
      require(error.ranks().size() == 1 &&
                  says(error, fmt::format(" from source rank {} (member ", to_int(error.ranks()[0]))),
              error.what());
      ++used.refused;
      expected.assign(size, guard);
    } else {
      restore.wait();
      const RestoreReport& report = restore.report();
      check_methods(report, asked);
      require(report.moved_bytes - report.overread_bytes == remote_bytes(one, rank, false),
              "only what is not held here comes from others");
      used.sieved_read += report.methods[Method::sieved_read].bytes;
      if (method) used.by_method[static_cast<std::size_t>(*method)] += report.moved_bytes;
    }
    const auto wrong = std::mismatch(expected.begin(), expected.end(), memory);
    if (wrong.first != expected.end()) {
      throw std::runtime_error("byte " + std::to_string(wrong.first - expected.begin()) + " of " +
                               std::to_string(size) + (*wrong.first == guard ? " may be a guard" : " of an element") +
                               " is wrong");
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(called + ", staging " + std::to_string(one.staging) + ": " + error.what());
  }
}

constexpr RestoreMethod every_method[] = {RestoreMethod::mapped, RestoreMethod::read, RestoreMethod::sieved_read,
                                          RestoreMethod::zcopy, RestoreMethod::packed};

// `serving`: budget of the slots that serve readers.
void all_methods(const std::vector<Case>& cases, ByteCount serving, Used& used) {
  const auto port = free_port();
  on_members(members, [&](int rank) {
    const auto self = static_cast<std::size_t>(rank);
    SessionOptions options = quick();
    options.staging_bytes = serving;
    Session session = Session::join(member(rank, members, port), options);
    ByteCount max_from = 0;
    ByteCount max_to = 0;
    for (const Case& one : cases) {
      max_from = std::max(max_from, one.from_bytes[self]);
      max_to = std::max(max_to, one.to_bytes[self]);
    }
    Arena from_arena = session.allocate(max_from);
    Arena to_arena = session.allocate(max_to);
    Buffers source{std::vector<std::byte>(max_from), from_arena.data()};
    Buffers target{std::vector<std::byte>(max_to), to_arena.data()};
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& one = cases[i];
      std::fill(source.ordinary.begin(), source.ordinary.end(), std::byte{0x11});
      std::fill_n(source.arena, max_from, std::byte{0x11});
      for (std::size_t t = 0; t < one.tensors.size(); ++t) store(one, rank, true, t, source.of(one.tensors[t].arena));
      const std::string name = "case " + std::to_string(i);
      Publication publication = session.publish(catalog_of(one, rank, true, source), {.name = name});
      for (const RestoreMethod method : every_method) restore_by(session, one, rank, name, method, target, used);
      restore_by(session, one, rank, name, std::nullopt, target, used);
      session.gather("read " + name, {}, patience);
      publication.retire(10s);
    }
    session.close(10s);
  });
}

std::vector<Case> random_cases(std::uint64_t first_seed, int count) {
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    Random random(first_seed + static_cast<std::uint64_t>(i) * 1'000'003);
    cases.push_back(random_case(random));
  }
  return cases;
}

void check_used(const Used& used) {
  const auto moved = [&](Method method) { return used.by_method[static_cast<std::size_t>(method)].load(); };
  const bool reads = reads_arenas();
  BOOST_TEST(moved(Method::packed) > 0U);
  BOOST_TEST(moved(Method::zcopy) > 0U);
  BOOST_TEST((moved(Method::mapped) > 0) == maps_arenas());
  BOOST_TEST((moved(Method::read) > 0) == reads);
  BOOST_TEST((used.sieved_read > 0) == reads);
  BOOST_TEST(used.refused > 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_method_brings_the_same_bytes_and_touches_nothing_else) {
  Used used;
  all_methods(random_cases(seed(), 50), 64 << 10, used);
  check_used(used);
}

BOOST_AUTO_TEST_CASE(sources_whose_slots_hold_one_element_serve_every_method) {
  Used used;
  auto cases = random_cases(seed() + 77, 40);
  std::erase_if(cases, [](const Case& one) { return one.wanted_elements > 2000; });
  BOOST_TEST(cases.size() >= 15U);
  all_methods(cases, one_item, used);
  check_used(used);
}

BOOST_AUTO_TEST_CASE(the_environment_names_the_method_where_the_caller_does_not) {
  struct Variable {
    explicit Variable(const char* method) { ::setenv("SHARDWIRE_METHOD", method, 1); }
    ~Variable() { ::unsetenv("SHARDWIRE_METHOD"); }
  };
  const auto moved_by = [](std::optional<RestoreMethod> asked) {
    const auto port = free_port();
    RestoreReport report;
    on_members(2, [&](int rank) {
      Session session = Session::join(member(rank, 2, port), tight());
      TestShard shard({{"w", "exp_avg"}, DType::f32, {1000}}, Layout::replicated(), Rank{0});
      Catalog catalog(Rank{0}, 1);
      shard.add_to(catalog);
      Publication publication;
      if (rank == 0) {
        shard.fill(1);
        publication = session.publish(catalog, {.snapshot = Snapshot::copy});
      } else {
        RestoreOptions options = tight_within(patience);
        options.method = asked;
        Restore restore = session.restore(catalog, options);
        restore.wait();
        report = restore.report();
      }
      session.gather("read", {}, patience);
      if (rank == 0) publication.retire(10s);
      session.close(10s);
    });
    return report;
  };
  {
    const Variable zcopy("zcopy");
    BOOST_TEST(moved_by(std::nullopt).methods[Method::zcopy].bytes == 4000U);
    BOOST_TEST(moved_by(RestoreMethod::packed).methods[Method::zcopy].bytes == 0U);
  }
  {
    const Variable packed("packed");
    const RestoreReport report = moved_by(std::nullopt);
    BOOST_TEST((report.methods[Method::packed].bytes == 4000 && report.methods[Method::zcopy].bytes == 0));
  }
  Session session = Session::join(member(0, 1, free_port()), quick());
  const Variable unknown("teleported");
  const Error error = failure_of([&] { session.restore(Catalog(Rank{0}, 1), within(1s)); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "teleported"));
}

BOOST_AUTO_TEST_SUITE_END()
