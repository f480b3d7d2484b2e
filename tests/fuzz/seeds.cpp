// SPDX-License-Identifier: Apache-2.0
#include "fuzz/seeds.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "fuzz/made_peer.hpp"
#include "transport/tcp/frame.hpp"
#include "wire/manifest_tables.hpp"
#include "wire/payload_header.hpp"
#include "wire/runs.hpp"
#include "wire/samples.hpp"

namespace shardwire::fuzz {

namespace {

class Seeds {
 public:
  void add(const char* target, std::string name, Bytes bytes) {
    all_.push_back({target, std::move(name), std::move(bytes)});
  }
  void add(const char* target, std::string name, std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    add(target, std::move(name), Bytes(bytes.begin(), bytes.end()));
  }
  std::vector<Seed> take() { return std::move(all_); }

 private:
  std::vector<Seed> all_;
};

/// The smallest of several encodings, and the largest that is no larger than `max_bytes`.
void add_two(Seeds& seeds, const char* target, const std::string& name, std::vector<Bytes> encodings,
             std::size_t max_bytes) {
  std::ranges::stable_sort(encodings, {}, &Bytes::size);
  const auto end = std::ranges::find_if(encodings, [&](const Bytes& one) { return one.size() > max_bytes; });
  seeds.add(target, name + "-small", encodings.front());
  if (end > encodings.begin() + 1 && *std::prev(end) != encodings.front()) {
    seeds.add(target, name + "-large", *std::prev(end));
  }
}

constexpr std::uint64_t rounds = 12;  // samples of each kind, of which two are kept

void add_messages(Seeds& seeds) {
  const std::size_t kinds = samples::Maker(0).messages().size();
  for (std::size_t kind = 0; kind < kinds; ++kind) {
    std::vector<Bytes> encodings;
    for (std::uint64_t i = 0; i < rounds; ++i) encodings.push_back(wire::encode(samples::Maker(i).messages()[kind]));
    add_two(seeds, "message", fmt::format("kind{:02}", kind), std::move(encodings), 1200);
  }
}

void add_manifests(Seeds& seeds) {
  seeds.add("manifest", "empty", wire::encode_manifest({}));
  for (std::uint64_t i = 0; i < 24; ++i) {
    seeds.add("manifest", fmt::format("random{:02}", i), wire::encode_manifest(samples::Maker(i).manifest(1 + i % 6)));
  }
  const auto one = [](const Extents& shape, Layout layout) {
    return TensorLayout{{{"w", "m"}, DType::f32, shape}, std::move(layout)};
  };
  const std::vector<std::pair<const char*, TensorLayout>> layouts{
      {"strided", one({8, 8}, Layout::mesh({2, 2}, {StridedShard{0, 2}, Shard{0}}))},
      {"tp-first", one({8, 8}, Layout::mesh({2, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first,
                                            {Rank{3}, Rank{1}, Rank{2}, Rank{0}}))},
      {"scalar", one({}, Layout::replicated())},
      {"empty-dim", one({0, 4}, Layout::chunk(1, 4))},
      {"within-twice", one({8, 8}, Layout::within(Layout::within(Layout::chunk(0, 2), 2, Layout::chunk(1, 2)), 4,
                                                  Layout::replicated()))},
      {"flat", one({3, 5}, Layout::flat(std::vector{FlatMember{{3, 5}}, FlatMember{{7}}}, 4, 8)[0])},
      {"packed-flat", one({3, 5}, Layout::packed(Layout::flat(std::vector{FlatMember{{3, 5}}}, 4)[0]))},
      // Once made a reader allocate memory for each block of the other dim.
      {"within-cyclic-without-elements",
       one({0, 1 << 24}, Layout::within(Layout::block_cyclic({1, 1}, {1, 2}), 2, Layout::replicated()))},
      {"cyclic-from-1", one({9, 9}, Layout::block_cyclic({2, 2}, {2, 2}, {1, 1}))},
  };
  for (const auto& [name, tensor] : layouts) seeds.add("manifest", name, wire::encode_manifest({4, {tensor}}));
  const auto halves = [](int dim) { return Layout::within(Layout::chunk(dim, 2), 2, Layout::replicated()); };
  TensorLayout second = one({8, 8}, halves(1));
  second.spec.key.state = "v";
  seeds.add("manifest", "rules-that-differ-inside", wire::encode_manifest({4, {one({8, 8}, halves(0)), second}}));
  // No encoder writes an alias of an alias.
  Bytes chain = wire::encode_manifest({4, {layouts.front().second}, {{"name-1", "name-2"}, {"name-3", "name-4"}}});
  const std::string_view from = "name-4", to = "name-1";
  const auto bytes = std::as_bytes(std::span(from));
  const auto found = std::search(chain.begin(), chain.end(), bytes.begin(), bytes.end());
  std::ranges::copy(std::as_bytes(std::span(to)), found);
  seeds.add("manifest", "alias-of-an-alias", std::move(chain));
}

void add_values(Seeds& seeds) {
  seeds.add("values", "empty", wire::encode_values({}));
  const auto values = samples::Maker(3).values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    seeds.add("values", fmt::format("kind{:02}", i), wire::encode_values({values[i]}));
  }
  seeds.add("values", "some", wire::encode_values({values.begin(), values.begin() + 14}));
}

void add_notes(Seeds& seeds) {
  seeds.add("exchange_note", "empty", wire::encode_exchange_note({}));
  for (std::uint64_t i = 0; i < 8; ++i) {
    seeds.add("exchange_note", fmt::format("random{}", i),
              wire::encode_exchange_note(samples::Maker(i).exchange_note()));
  }
}

void add_tables(Seeds& seeds) {
  seeds.add("runs", "none", Bytes{});
  for (std::uint64_t i = 0; i < 8; ++i) {
    seeds.add("runs", fmt::format("random{}", i), wire::encode_runs(samples::Maker(i).runs(1 + i)));
  }
  seeds.add("runs", "all-members", wire::encode_runs(std::vector{wire::MemberRun{0, wire::max_rank + 1, 0, 1}}));

  const auto with_choice = [](std::uint8_t choice, const Bytes& table) {
    Bytes bytes{std::byte{choice}};
    bytes.insert(bytes.end(), table.begin(), table.end());
    return bytes;
  };
  const std::string a = "layers.0.weight", b = "layers.0.bias", c = "norm", none;
  seeds.add("manifest_tables", "names", with_choice(0, wire::encode_names({&a, &b, &none, &c, &c})));
  const std::vector<wire::TensorRow> rows{{0, 0, 0, 0, 1}, {0, 1, 0, 0, 2}, {1, 0, 1, 1, 1},
                                          {1, 1, 1, 1, 2}, {2, 1, 2, 0, 9}, {0, 2, 0, 2, 70'000}};
  seeds.add("manifest_tables", "rows", with_choice(0xff, wire::encode_rows(rows, {3, 3, 3, 3})));

  const auto header = [](const wire::PayloadHeader& from) {
    const wire::EncodedHeader encoded(from);
    return Bytes(encoded.bytes().begin(), encoded.bytes().end());
  };
  seeds.add("payload_header", "short", header({7, 0, {}}));
  seeds.add("payload_header", "part", header({7, 3, {}}));
  seeds.add("payload_header", "digest", header({7, 3, Digest128{1, 2}}));
}

// --- control connections ---

using Messages = std::vector<wire::Message>;

Bytes conversation_of(std::uint8_t choice, const Messages& messages) {
  Bytes bytes{std::byte{choice}};
  for (const wire::Message& message : messages) {
    const Bytes frame = frame_of(message);
    bytes.insert(bytes.end(), frame.begin(), frame.end());
  }
  return bytes;
}

void add_handshakes(Seeds& seeds) {
  const wire::Hello hello = peer_hello();
  wire::Hello other_version = hello, other_run = hello, other_world = hello;
  other_version.version = 3;
  other_run.run_id = "other";
  other_world.world_size = 5;
  const wire::Failure failure{0, ErrorCode::unsupported, "no"};
  for (const std::uint8_t choice : {0, 1, 2, 3}) {
    const bool initiator = (choice & 1) != 0;
    const auto add = [&](const char* name, const Messages& messages) {
      seeds.add("handshake", fmt::format("{}-{}", name, choice), conversation_of(choice, messages));
    };
    add("honest", {hello, proof_of(hello, initiator)});
    if (choice > 1) continue;
    add("other-key", {hello, wire::Proof{}});
    add("other-version", {other_version});
    add("other-run", {other_run});
    add("other-world", {other_world});
    add("failure", {failure});
    add("no-hello", {wire::Ping{1}});
    Bytes long_hello = conversation_of(choice, {wire::ManifestReply{{}, Bytes(wire::max_hello_bytes)}});
    long_hello.resize(64);  // its length alone is refused
    seeds.add("handshake", fmt::format("long-hello-{}", choice), std::move(long_hello));
    add("no-proof", {hello, wire::Goodbye{}});
    add("talks-on", {hello, proof_of(hello, initiator), wire::Ping{5}, wire::Goodbye{}});
  }
}

void add_control_frames(Seeds& seeds) {
  const wire::Lease lease{5, "optimizer", 3, {{0, {Box{{0, 0}, {2, 3}}}}}};
  const std::vector<std::pair<const char*, Messages>> all{
      {"ping", {wire::Ping{3}, wire::Pong{4}, wire::Ping{5}}},
      {"goodbye", {wire::Goodbye{}}},
      {"failed-request", {wire::Failure{3, ErrorCode::withdrawn, "gone"}, wire::Goodbye{}}},
      {"dismissed", {wire::Failure{0, ErrorCode::internal, "out"}, wire::Ping{1}}},
      {"lease", {lease, wire::Confirm{6, "optimizer", 3}, wire::Release{7, 1}}},
      {"watch", {wire::Watch{"optimizer"}, wire::Lookup{{1, 2, 3}}}},
      {"hello-again", {peer_hello(), wire::Proof{}}},
  };
  for (const auto& [name, messages] : all) {
    for (const std::uint8_t choice : {0, 3}) {
      seeds.add("control_frames", fmt::format("{}-{}", name, choice), conversation_of(choice, messages));
    }
  }
  Bytes cut = conversation_of(0, {wire::Ping{3}, lease});
  cut.resize(cut.size() - 5);
  seeds.add("control_frames", "cut", std::move(cut));
  Bytes too_long = conversation_of(0, {wire::Ping{3}});
  too_long.insert(too_long.end(), 8, std::byte{0xff});
  seeds.add("control_frames", "too-long", std::move(too_long));
}

// --- tcp ---

/// Writes the steps of tcp_streams.cpp.
class TcpSteps {
 public:
  explicit TcpSteps(int streams) { put(streams - 1); }
  TcpSteps& frame(int stream, transport::tcp::FrameKind kind, int header, int number, int offset, int bytes,
                  int payload) {
    put(0x20 | stream);
    for (const int value : {static_cast<int>(kind), header, number}) put(value);
    for (const int value : {offset, bytes, payload}) {
      put(value);
      put(value >> 8);
    }
    return *this;
  }
  TcpSteps& hello(int stream, int streams) {
    return frame(stream, transport::tcp::FrameKind::hello, 0, 0, stream, 0, streams);
  }
  TcpSteps& message(int number, int header, int bytes, int payload) {
    return frame(0, transport::tcp::FrameKind::message, header, number, 0, bytes, payload).data(0, header + bytes);
  }
  TcpSteps& chunk(int stream, int number, int offset, int bytes) {
    return frame(stream, transport::tcp::FrameKind::chunk, 0, number, offset, bytes, 0).data(stream, bytes);
  }
  TcpSteps& data(int stream, int count) {
    put(stream);
    put(count);
    for (int i = 0; i < count; ++i) put(++last_);
    return *this;
  }
  TcpSteps& run() {
    put(0x40);
    return *this;
  }
  TcpSteps& close(int stream) {
    put(0x80 | stream);
    return *this;
  }
  [[nodiscard]] const Bytes& bytes() const { return bytes_; }

 private:
  void put(int value) { bytes_.push_back(static_cast<std::byte>(value)); }
  Bytes bytes_;
  int last_ = 0;
};

void add_tcp(Seeds& seeds) {
  const auto add = [&](const char* name, const TcpSteps& steps) { seeds.add("tcp_streams", name, steps.bytes()); };
  add("hello", TcpSteps(1).hello(0, 1));
  add("message", TcpSteps(1).hello(0, 1).message(0, 8, 20, 20).message(1, 0, 0, 0).message(2, 64, 0, 0));
  add("chunks",
      TcpSteps(1).hello(0, 1).message(0, 8, 10, 40).run().chunk(0, 0, 10, 20).message(1, 4, 5, 5).chunk(0, 0, 30, 10));
  add("cut", TcpSteps(1).hello(0, 1).message(0, 8, 10, 40).run().close(0));
  add("discarded", TcpSteps(1).hello(0, 1).message(0, 8, 10, 5000).chunk(0, 0, 10, 100));
  add("too-much", TcpSteps(1).hello(0, 1).message(0, 8, 10, 20).chunk(0, 0, 10, 20));
  add("no-hello", TcpSteps(1).message(0, 8, 10, 20));
  add("out-of-turn", TcpSteps(1).hello(0, 1).message(1, 8, 10, 20));
  add("late-chunk", TcpSteps(1).hello(0, 1).message(0, 8, 10, 10).chunk(0, 0, 0, 4));
  TcpSteps many(1);
  many.hello(0, 1);
  for (int i = 0; i < 66; ++i) many.message(i, 0, 0, 9);
  add("many", many);
  add("streams", TcpSteps(3)
                     .hello(0, 3)
                     .hello(1, 3)
                     .hello(2, 3)
                     .message(0, 8, 0, 30)
                     .chunk(1, 0, 0, 10)
                     .chunk(2, 0, 10, 10)
                     .run()
                     .chunk(1, 0, 20, 10));
  add("early-chunk", TcpSteps(2).hello(1, 2).chunk(1, 0, 0, 10).run().hello(0, 2).message(0, 8, 0, 10));
  add("same-stream-twice", TcpSteps(2).hello(0, 2).frame(1, transport::tcp::FrameKind::hello, 0, 0, 0, 0, 2));
  add("one-ends",
      TcpSteps(4).hello(0, 4).hello(1, 4).hello(2, 4).hello(3, 4).message(0, 8, 0, 30).close(1).chunk(2, 0, 0, 30));
  // Raw bytes of the same frames: a fuzzer learns the form of a frame from these.
  for (const bool hello_first : {true, false}) {
    transport::tcp::Frame frame =
        transport::tcp::make_frame(hello_first ? transport::tcp::FrameKind::hello : transport::tcp::FrameKind::message);
    frame.number = hello_first ? 0x1234 : 0;
    frame.payload_bytes = 1;
    Bytes bytes{std::byte{0}, std::byte{0}, std::byte{sizeof frame}};
    const auto raw = std::as_bytes(std::span(&frame, 1));
    bytes.insert(bytes.end(), raw.begin(), raw.end());
    seeds.add("tcp_streams", hello_first ? "raw-hello" : "raw-message", std::move(bytes));
  }
}

// --- text ---

void add_texts(Seeds& seeds) {
  seeds.add("store_value", "one", "10.0.0.7 51234\n");
  seeds.add("store_value", "two", "10.0.0.7 51234\nfe80::1 9\n");
  seeds.add("store_value", "no-port", "10.0.0.7 0\n");
  seeds.add("store_value", "no-end", "10.0.0.7 51234");

  seeds.add("fabric_file", "small", R"j({"copy": {"latency_microseconds": 5, "gigabytes_per_second": 1000},
"host": {"latency_microseconds": 8, "gigabytes_per_second": 200},
"network": {"latency_microseconds": 15, "gigabytes_per_second": 45, "links": 8}})j");
  seeds.add("fabric_file", "large", R"j({"name": "n", "sources": ["a", "b"], "ranks_per_host": 8,
"copy": {"latency_microseconds": 0, "gigabytes_per_second": 1e-6},
"host": {"latency_microseconds": 2.5, "gigabytes_per_second": 1e6, "total_gigabytes_per_second": 1600},
"network": {"latency_microseconds": 15, "gigabytes_per_second": [45, 50.5], "links": 2, "oversubscription": 1.5}})j");

  seeds.add("costs_file", "empty", R"j({"format": "shardwire costs 2", "costs": []})j");
  seeds.add("costs_file", "all", R"j({"format": "shardwire costs 2", "machine": "m", "processor": "p", "costs": [
{"transport": "tcp", "memory": "host", "method": "packed", "latency_seconds": 1e-6, "run_seconds": 0, "bytes_per_second": 1e9},
{"transport": "local", "memory": "cuda", "method": "local", "latency_seconds": 0, "run_seconds": 1e-9, "bytes_per_second": 1},
{"transport": "pigeon", "memory": "host", "method": "sieved_read", "latency_seconds": 3, "run_seconds": 2, "bytes_per_second": 4}],
"kernels": [{"run_bytes_class": "runs to 1 KiB", "kernel": "avx2"}], "tcp": {"request_bytes": 262144, "streams": 4}})j");
  seeds.add("costs_file", "old", R"j({"format": "shardwire costs 1", "costs": []})j");

  const auto case_of = [](std::string_view tensors, std::string_view source, std::string_view target,
                          std::string_view more = "") {
    return fmt::format(R"j({{"states": ["m"], {}, "source": {{"ranks": 4, {}}}, "target": {{"ranks": 4, {}}}{}}})j",
                       tensors, source, target, more);
  };
  const std::string_view w = R"j("tensors": [{"fqn": "w", "shape": [8, 4], "rule": "r"}])j";
  const std::string_view whole = R"j("rules": {"*": {"replicated": true}})j";
  const auto add_rule = [&](const char* name, std::string_view rule) {
    seeds.add("case_file", name, case_of(w, fmt::format(R"j("rules": {{"r": {{{}}}}})j", rule), whole));
  };
  add_rule("replicated", R"j("replicated": true)j");
  add_rule("replicated-ranks", R"j("replicated": true, "ranks": [3, 1])j");
  add_rule("chunk", R"j("chunk": 0, "over": 4)j");
  add_rule("chunk-ranks", R"j("chunk": 1, "over": 2, "ranks": [3, 1])j");
  add_rule("mesh", R"j("mesh": [2, 2], "placements": ["S(0)", "R"])j");
  add_rule("mesh-order",
           R"j("mesh": [2, 2], "placements": ["SS(0,2)", "S(-2)"], "order": "tp_first", "ranks": [3, 2, 1, 0])j");
  add_rule("blockcyclic", R"j("blockcyclic": {"block": [2, 3], "grid": [2, 2], "source": [1, 0]})j");
  add_rule("blockcyclic-ranks", R"j("blockcyclic": {"block": [2, 3], "grid": [2, 1]}, "ranks": [3, 0])j");
  add_rule("boxes", R"j("boxes": {"0": [[[0, 0], [4, 4]]], "3": [[[4, 0], [4, 4]]]})j");
  add_rule("flat", R"j("flat": [["*"]], "world": 4)j");
  add_rule("flat-within", R"j("flat": [["w"]], "world": 2, "align": 4, "within": {"*": {"chunk": 0, "over": 2}})j");
  add_rule("flat-ranks",
           R"j("flat": [["w"]], "world": 2, "within": {"mesh": [1], "placements": ["R"]}, "ranks": [2, 0])j");
  seeds.add("case_file", "lost", case_of(w, fmt::format(R"j("lost": [3, 1], {})j", whole), whole));
  seeds.add("case_file", "all-lost",
            case_of(R"j("tensors": [{"fqn": "t", "shape": [1]}])j", fmt::format(R"j("lost": [0, 1, 2, 3], {})j", whole),
                    whole));
  seeds.add("case_file", "pipeline",
            case_of(R"j("model": "llama3-8b", "layers": 2)j", fmt::format(R"j("pipeline": 2, {})j", whole), whole));
  seeds.add("case_file", "model", case_of(R"j("model": "llama3-8b", "layers": 1, "embeddings": false)j", whole, whole));
  seeds.add("case_file", "rest",
            case_of(w, whole, whole, R"j(, "name": "n", "dtype": "bf16", "dtypes": {"m": "f32"}, "hosts": 2,
"scalars": {"step": 1000, "lr": 0.5, "amsgrad": false, "note": "x", "none": null})j"));
  // One for each reason of a refusal.
  const std::pair<const char*, const char*> refused[] = {
      {"partial", R"j("mesh": [2, 2], "placements": ["P", "R"])j"},
      {"no-placement", R"j("mesh": [2, 2], "placements": ["X", "R"])j"},
      {"placements", R"j("mesh": [2, 2], "placements": ["R"])j"},
      {"mesh-ranks", R"j("mesh": [2], "placements": ["R"], "ranks": [1])j"},
      {"order", R"j("mesh": [2], "placements": ["R"], "order": "left")j"},
      {"dims", R"j("boxes": {"0": [[[0, 0, 0, 0, 0, 0, 0, 0, 0], [1]]]})j"},
      {"sizes", R"j("boxes": {"0": [[[0, 0], [4]]]})j"},
      {"overlap", R"j("boxes": {"0": [[[0, 0], [4, 4]], [[0, 0], [4, 4]]]})j"},
      {"outside", R"j("boxes": {"0": [[[0, 0], [9, 4]]]})j"},
      {"no-rank", R"j("boxes": {"00": []})j"},
      {"owners", R"j("blockcyclic": {"block": [2, 3], "grid": [2, 2], "source": [1]})j"},
      {"two-kinds", R"j("chunk": 0, "over": 4, "replicated": true)j"},
      {"no-kind", R"j("over": 4)j"},
      {"unknown", R"j("chunk": 0, "over": 4, "colour": 1)j"},
      {"no-integer", R"j("chunk": 0.5, "over": 4)j"},
      {"range", R"j("chunk": 0, "over": 0)j"},
      {"large-integer", R"j("chunk": 99999999999999999999, "over": 4)j"},
      {"twice", R"j("chunk": 0, "chunk": 1, "over": 4)j"},
      {"no-dim", R"j("chunk": 7, "over": 4)j"},
      {"flat-twice", R"j("flat": [["w", "w"]], "world": 4)j"},
      {"flat-unknown", R"j("flat": [["w", "x"]], "world": 4)j"},
      {"flat-missing", R"j("flat": [], "world": 4)j"},
      {"flat-outer", R"j("flat": [["w"]], "world": 2, "within": {"x": {"chunk": 0, "over": 2}})j"},
      {"flat-outers",
       R"j("flat": [["w"]], "world": 2, "within": {"r": {"chunk": 0, "over": 2}, "x": {"chunk": 0, "over": 4}})j"},
      {"flat-no-dim", R"j("flat": [["w"]], "world": 2, "within": {"*": {"chunk": 5, "over": 2}})j"},
  };
  for (const auto& [name, rule] : refused) add_rule((std::string("refused-") + name).c_str(), rule);
  const std::pair<const char*, const char*> refused_tensors[] = {
      {"nine-dims", R"j({"fqn": "w", "shape": [1, 1, 1, 1, 1, 1, 1, 1, 1]})j"},
      {"large", R"j({"fqn": "w", "shape": [4294967296, 4294967296]})j"},
      {"twice", R"j({"fqn": "w", "shape": [2]}, {"fqn": "w", "shape": [2]})j"},
      {"keyword", R"j({"fqn": "w", "shape": [2], "rule": "mesh"})j"},
  };
  for (const auto& [name, tensors] : refused_tensors) {
    seeds.add("case_file", fmt::format("refused-tensor-{}", name),
              case_of(fmt::format(R"j("tensors": [{}])j", tensors), whole, whole));
  }
  seeds.add("case_file", "refused-rule", case_of(w, R"j("rules": {"x": {"replicated": true}})j", whole));
  seeds.add("case_file", "refused-rule-of-model",
            case_of(R"j("model": "llama3-8b")j", R"j("rules": {"x": {"replicated": true}})j", whole));
  seeds.add("case_file", "refused-stages",
            case_of(R"j("model": "llama3-8b", "layers": 1)j", fmt::format(R"j("pipeline": 2, {})j", whole), whole));
  seeds.add("case_file", "no-json", "{\"states\":\n[,");
}

}  // namespace

std::vector<Seed> all_seeds() {
  Seeds seeds;
  add_messages(seeds);
  add_manifests(seeds);
  add_values(seeds);
  add_notes(seeds);
  add_tables(seeds);
  add_handshakes(seeds);
  add_control_frames(seeds);
  add_tcp(seeds);
  add_texts(seeds);
  return seeds.take();
}

}  // namespace shardwire::fuzz
