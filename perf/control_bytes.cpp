// SPDX-License-Identifier: Apache-2.0
// Control bytes of planning R12 (llama3-405b, 16,384 -> 16,320 ranks): every message a rank sends or receives until it can
// plan, encoded and counted with its frame. Rendezvous and directories are the real ones; sockets and time are not.
// Outline: the case; traffic; what all ranks pay; one scenario; main.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <numeric>
#include <random>

#include "case/models.hpp"
#include "perf/row.hpp"
#include "session/directory.hpp"
#include "session/rendezvous.hpp"

namespace {

using namespace shardwire;
using Json = nlohmann::ordered_json;
using Clock = Rendezvous::Clock;

// --- the case ---

constexpr int stages = 16;
constexpr int data_parallel = 128;
constexpr int tensor_parallel = 8;
constexpr int stage_ranks = data_parallel * tensor_parallel;
constexpr int members = stages * stage_ranks;
constexpr int readers = 8 * 255 * 8;
constexpr const char* states[] = {"master", "exp_avg", "exp_avg_sq"};

// Layers are cut into runs of equal length, the first `layers mod stages` one longer.
int stage_of_layer(int layer, int layers) {
  const int longer = layers % stages;
  const int length = layers / stages;
  const int in_longer = longer * (length + 1);
  return layer < in_longer ? layer / (length + 1) : longer + (layer - in_longer) / length;
}

int stage_of(const std::string& fqn, int layers) {
  constexpr std::string_view prefix = "model.layers.";
  int layer = 0;
  if (fqn.starts_with(prefix)) {
    std::from_chars(fqn.data() + prefix.size(), fqn.data() + fqn.size(), layer);
    return stage_of_layer(layer, layers);
  }
  return fqn.find("embed") != std::string::npos ? 0 : stages - 1;
}

Layout layout_of(const std::string& rule, int stage) {
  std::vector<Rank> ranks;
  for (int i = 0; i < stage_ranks; ++i) ranks.push_back(Rank{stage * stage_ranks + i});
  const std::vector<Extent> mesh{data_parallel, tensor_parallel};
  if (rule == "row") {
    return Layout::mesh(mesh, {StridedShard{0, tensor_parallel}, Shard{0}}, MeshOrder::tp_first, std::move(ranks));
  }
  if (rule == "col") return Layout::mesh(mesh, {Shard{0}, Shard{1}}, MeshOrder::mesh, std::move(ranks));
  return Layout::mesh(mesh, {Shard{0}, Replicate{}}, MeshOrder::mesh, std::move(ranks));
}

std::vector<Manifest> source_manifests() {
  const Model* model = find_model("llama3-405b");
  std::vector<std::map<std::string, Layout>> layouts(stages);
  std::vector<Manifest> manifests(stages, Manifest{members, {}});
  for (const CaseTensor& tensor : tensors_of(*model, model->layers, true)) {
    const auto stage = static_cast<std::size_t>(stage_of(tensor.fqn, model->layers));
    auto found = layouts[stage].find(tensor.rule);
    if (found == layouts[stage].end()) {
      found = layouts[stage].emplace(tensor.rule, layout_of(tensor.rule, static_cast<int>(stage))).first;
    }
    for (const char* state : states) {
      manifests[stage].tensors.push_back({{{tensor.fqn, state}, DType::f32, tensor.shape}, found->second});
    }
  }
  return manifests;
}

// --- traffic ---

std::uint64_t framed_bytes(const wire::Message& message) {
  return sizeof(std::uint64_t) + wire::encode(message).size();
}

struct Traffic {
  std::vector<std::uint64_t> in = std::vector<std::uint64_t>(members);
  std::vector<std::uint64_t> out = std::vector<std::uint64_t>(members);

  void carry(int from, int to, std::uint64_t bytes) {
    out[static_cast<std::size_t>(from)] += bytes;
    in[static_cast<std::size_t>(to)] += bytes;
  }
};

Json spread(const std::vector<std::uint64_t>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {{"min", *std::min_element(values.begin(), values.end())},
          {"mean", std::llround(sum / static_cast<double>(values.size()))},
          {"max", *std::max_element(values.begin(), values.end())}};
}

wire::Hello hello_of(int rank) {
  wire::Hello hello;
  hello.capabilities = {"packed", "digest"};
  hello.rank = rank;
  hello.world_size = members;
  hello.incarnation = 0x9e3779b97f4a7c15ULL * static_cast<std::uint64_t>(rank + 1);
  hello.host = fmt::format("01234567-89ab-cdef-0123-{:012x} ipc:[4026531839] pid:[4026531836] 1000", rank / 8);
  return hello;
}

wire::MemberRecord record_of(int rank) {
  const wire::Hello hello = hello_of(rank);
  return {.rank = rank,
          .incarnation = hello.incarnation,
          .host = hello.host,
          .address = fmt::format("10.{}.{}.{}", rank >> 16, (rank >> 8) & 255, rank & 255),
          .port = 40000};
}

// --- what ranks pay, in any scenario ---

struct Publications {
  std::vector<Manifest> manifests = source_manifests();
  std::vector<Bytes> encoded;
  std::vector<wire::Digest> digests;
  Bytes values = wire::encode_values({{{"", "step"}, std::int64_t{1000}}});
  wire::Digest values_digest = wire::digest_of(values);

  Publications() {
    for (const Manifest& manifest : manifests) {
      encoded.push_back(wire::encode_manifest(manifest));
      digests.push_back(wire::digest_of(encoded.back()));
    }
  }
  [[nodiscard]] wire::PublicationRecord of(int rank) const {
    return {.member = rank,
            .place = rank,
            .step = 1000,
            .generation = 1,
            .live = true,
            .manifest = digests[static_cast<std::size_t>(rank / stage_ranks)],
            .values = values_digest};
  }
};

void shake_hands(Traffic& traffic, int from, int to) {
  const std::uint64_t proof = framed_bytes(wire::Proof{});
  traffic.carry(from, to, framed_bytes(hello_of(from)) + proof);
  traffic.carry(to, from, framed_bytes(hello_of(to)) + proof);
}

/// Each reader takes every manifest but its own stage's from a holder, and the values from one, as a restore does: holders
/// in turn by the number of the reader.
void fetch_descriptions(Traffic& traffic, const Publications& publications) {
  const std::uint64_t ask = framed_bytes(wire::ManifestRequest{});
  std::vector<std::uint64_t> replies;
  for (const Bytes& encoded : publications.encoded) replies.push_back(framed_bytes(wire::ManifestReply{{}, encoded}));
  for (int reader = 0; reader < readers; ++reader) {
    for (int stage = 0; stage < stages; ++stage) {
      if (stage == reader / stage_ranks) continue;
      const int holder = stage * stage_ranks + reader % stage_ranks;
      shake_hands(traffic, reader, holder);
      traffic.carry(reader, holder, ask);
      traffic.carry(holder, reader, replies[static_cast<std::size_t>(stage)]);
    }
    shake_hands(traffic, reader, reader);
    traffic.carry(reader, reader, framed_bytes(wire::ValuesRequest{}));
    traffic.carry(reader, reader, framed_bytes(wire::ValuesReply{{}, publications.values}));
  }
}

// --- one scenario ---

struct Scenario {
  const char* name;
  bool watch_first;  // else everybody has published before anybody asks
  bool random_order;
  std::chrono::seconds publishing;  // from the first publication to the last
};

struct Run {
  explicit Run(const Publications& given)
      : publications(given),
        rendezvous(members, [this](auto to, const wire::Message& message) { sent(to, message); }) {}

  // Client and member have one number here.
  void sent(std::span<const Rendezvous::ClientId> to, const wire::Message& message) {
    const std::uint64_t bytes = framed_bytes(message);
    const bool addresses = std::holds_alternative<wire::Addresses>(message);
    for (const auto client : to) (addresses ? address_bytes : from_host)[client] += bytes;
    if (const auto* roster = std::get_if<wire::Roster>(&message)) {
      rosters += to.empty() ? 0 : 1;
      if (std::find(to.begin(), to.end(), observer) != to.end()) directory.apply(*roster);
    }
  }
  void tell(int rank, const wire::Message& message) {
    const bool lookup = std::holds_alternative<wire::Lookup>(message);
    (lookup ? address_bytes : to_host)[static_cast<std::size_t>(rank)] += framed_bytes(message);
    rendezvous.take(static_cast<Rendezvous::ClientId>(rank), hello_of(rank), message);
    rendezvous.flush(now);
  }
  void pass_to(Clock::time_point time) {
    for (auto due = rendezvous.flush(now); due && *due <= time; due = rendezvous.flush(now)) now = *due;
    now = time;
  }

  void play(const Scenario& scenario) {
    for (int rank = 0; rank < members; ++rank) {
      tell(rank, wire::Join{record_of(rank)});
    }
    const auto watch = [&] {
      for (int rank = 0; rank < readers; ++rank) tell(rank, wire::Watch{"state"});
    };
    if (scenario.watch_first) watch();
    std::vector<int> order(members);
    std::iota(order.begin(), order.end(), 0);
    if (scenario.random_order) std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
    const auto began = now;
    for (std::size_t i = 0; i < order.size(); ++i) {
      pass_to(began + std::chrono::nanoseconds(scenario.publishing) * static_cast<int>(i) / members);
      tell(order[i], wire::Publish{"state", publications.of(order[i])});
    }
    if (!scenario.watch_first) watch();
    pass_to(now + std::chrono::seconds(2));
    for (int rank = 0; rank < readers; ++rank) {
      wire::Lookup lookup;
      for (int stage = 0; stage < stages; ++stage) {
        if (stage != rank / stage_ranks) lookup.members.push_back(stage * stage_ranks + rank % stage_ranks);
      }
      lookup.members.push_back(rank);
      std::sort(lookup.members.begin(), lookup.members.end());
      tell(rank, lookup);
    }
    check();
  }

  /// What one reader knows at the end has to be what was published.
  void check() const {
    const auto records = directory.publications("state");
    bool right = records.size() == members;
    for (int rank = 0; right && rank < members; ++rank) {
      wire::PublicationRecord expected = publications.of(rank);
      expected.turn = 1;
      right = records[static_cast<std::size_t>(rank)] == expected;
    }
    if (!right) throw std::runtime_error("a reader's roster is not what was published");
  }

  static constexpr Rendezvous::ClientId observer = 4711;
  const Publications& publications;
  Clock::time_point now{std::chrono::hours(1)};
  Directory directory{members};
  std::uint64_t rosters = 0;  // messages that carry one
  std::vector<std::uint64_t> from_host = std::vector<std::uint64_t>(members);
  std::vector<std::uint64_t> to_host = std::vector<std::uint64_t>(members);
  std::vector<std::uint64_t> address_bytes = std::vector<std::uint64_t>(members);
  Rendezvous rendezvous;
};

Json row_of(const Scenario& scenario, const Publications& publications, const std::string& commit) {
  Run run(publications);
  run.play(scenario);
  Traffic traffic;
  fetch_descriptions(traffic, publications);
  const std::uint64_t proof = framed_bytes(wire::Proof{});
  std::vector<std::uint64_t> from_host;
  std::vector<std::uint64_t> total;
  for (std::size_t rank = 0; rank < members; ++rank) {
    const std::uint64_t greeting = framed_bytes(hello_of(static_cast<int>(rank))) + proof;
    // What member 0 says to itself crosses no wire; its part as the rendezvous has a target of its own.
    const std::uint64_t received = rank == 0 ? 0 : run.from_host[rank] + greeting;
    const std::uint64_t told = rank == 0 ? 0 : run.to_host[rank] + greeting;
    if (rank != 0) from_host.push_back(received);
    total.push_back(traffic.in[rank] + traffic.out[rank] + received + told);
  }
  std::vector<std::uint64_t> manifests;
  for (const Bytes& encoded : publications.encoded) manifests.push_back(encoded.size());
  const auto manifest_bytes = std::accumulate(manifests.begin(), manifests.end(), std::uint64_t{0});
  const std::uint64_t allowed = std::uint64_t{256} * members + manifest_bytes;
  const std::uint64_t allowed_host = 64 << 10;
  const auto most = *std::max_element(total.begin(), total.end());
  const auto most_host = *std::max_element(from_host.begin(), from_host.end());
  return {{"name", fmt::format("control_bytes r12, {}", scenario.name)},
          {"target", "T9"},
          {"commit", perf::commit(commit)},
          {"machine", perf::machine()},
          {"versions", perf::versions()},
          {"processes", members},
          {"publishing_seconds", scenario.publishing.count()},
          {"rank_bytes", spread(total)},
          {"rank_bytes_allowed", allowed},
          {"host_bytes_per_rank", spread(from_host)},
          {"host_bytes_allowed", allowed_host},
          {"ratio", static_cast<double>(most) / static_cast<double>(allowed)},
          {"host_ratio", static_cast<double>(most_host) / static_cast<double>(allowed_host)},
          {"rosters_sent", run.rosters},
          {"address_bytes", spread({run.address_bytes.begin(), run.address_bytes.begin() + readers})},
          {"addresses", stages},
          {"manifests", manifests.size()},
          {"manifest_bytes", spread(manifests)},
          {"manifest_bytes_total", manifest_bytes}};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Control bytes of planning R12, without sockets: one JSON row for each order of events.");
  std::string commit;
  app.add_option("--commit", commit, "commit to name in the rows; default: the one this was built from");
  CLI11_PARSE(app, argc, argv);
  using std::chrono::seconds;
  const Scenario scenarios[] = {
      {"readers come after all have published", false, false, seconds(10)},
      {"readers wait, publications in the order of ranks", true, false, seconds(10)},
      {"readers wait, publications in random order", true, true, seconds(1)},
      {"readers wait, publications in random order", true, true, seconds(10)},
      {"readers wait, publications in random order", true, true, seconds(60)},
      {"readers wait, publications in random order", true, true, seconds(600)},
  };
  try {
    const Publications publications;
    for (const Scenario& scenario : scenarios) {
      std::printf("%s\n", row_of(scenario, publications, commit).dump().c_str());
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "control_bytes: %s\n", error.what());
    return 1;
  }
  return 0;
}
