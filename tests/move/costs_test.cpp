// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <boost/test/unit_test.hpp>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "shardwire/error.hpp"

using namespace shardwire;

namespace {

struct File {
  std::string path = (std::filesystem::temp_directory_path() / ("costs-" + std::to_string(::getpid()))).string();
  ~File() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
};

// Why; empty when it is not refused, or not by name.
std::string refusal_of(const File& file) {
  try {
    (void)load_costs(file.path);
    return {};
  } catch (const Error& error) {
    const std::string why = error.what();
    return error.code() == ErrorCode::invalid_argument && why.find(file.path) != std::string::npos ? why : "";
  }
}
bool is_refused(const File& file) {
  return !refusal_of(file).empty();
}

constexpr MemoryKind host = MemoryKind::host;
constexpr MemoryKind cuda = MemoryKind::cuda;
constexpr const char* known[] = {"loopback", "shm", "tcp", "ucx", "libfabric", "nccl"};

template <typename Visit>
void each_way(Visit visit) {
  for (std::size_t way = 0; way < way_count; ++way) visit(static_cast<Way>(way));
}

// With `bytes_per_second` to tell entries apart.
std::string first_entry(const char* reach, const char* way, const char* bytes_per_second) {
  return std::string(R"({"reach":")") + reach + R"(","way":")" + way +
         R"(","latency_seconds":1e-6,"run_seconds":0,"bytes_per_second":)" + bytes_per_second + "}";
}
std::string entry(const char* transport, const char* memory, const char* way, const char* bytes_per_second) {
  return std::string(R"({"transport":")") + transport + R"(","memory":")" + memory + R"(","way":")" + way +
         R"(","latency_seconds":1e-6,"run_seconds":0,"bytes_per_second":)" + bytes_per_second + "}";
}
std::string file_of(const char* version, const std::string& costs, const std::string& more = "") {
  return std::string(R"({"format":"shardwire costs )") + version + R"(","costs":[)" + costs + "]" + more + "}";
}

}  // namespace

BOOST_AUTO_TEST_SUITE(costs)

BOOST_AUTO_TEST_CASE(a_cost_that_is_set_is_that_of_one_transport_memory_and_way) {
  const WayCost cost{.latency_seconds = 1, .run_seconds = 2, .bytes_per_second = 3};
  for (const char* transport : {"tcp", "carrier-pigeon"}) {
    CostModel model;
    model.set(transport, host, Way::packed, cost);
    BOOST_TEST((model.at(transport, host, Way::packed) == cost));
    BOOST_TEST((model.at(transport, MemoryKind::detect, Way::packed) == cost));
    BOOST_TEST((model.at(transport, cuda, Way::packed) == CostModel().at(transport, cuda, Way::packed)));
    BOOST_TEST((model.at(transport, host, Way::straight) == CostModel().at(transport, host, Way::straight)));
    BOOST_TEST((model.at("ucx", host, Way::packed) == CostModel().at("ucx", host, Way::packed)));
    BOOST_TEST((model != CostModel()));
    model.set(transport, host, Way::packed, CostModel().at(transport, host, Way::packed));
    BOOST_TEST((model == CostModel()));
  }
}

BOOST_AUTO_TEST_CASE(local_copies_belong_to_no_transport) {
  const WayCost cost{.latency_seconds = 1, .run_seconds = 2, .bytes_per_second = 3};
  CostModel model;
  model.set("shm", host, Way::local, cost);
  for (const char* transport : {"local", "", "tcp", "ucx"}) {
    BOOST_TEST((model.at(transport, host, Way::local) == cost));
  }
  BOOST_TEST((model.at("local", cuda, Way::local) != cost));
}

BOOST_AUTO_TEST_CASE(every_way_has_a_cost_over_every_transport_known_or_not) {
  const CostModel model;
  each_way([&](Way way) {
    for (const char* transport : known) {
      const WayCost cost = model.at(transport, host, way);
      BOOST_TEST((cost.latency_seconds > 0 && cost.run_seconds > 0 && cost.bytes_per_second > 1e9));
      const WayCost of_device = model.at(transport, cuda, way);
      BOOST_TEST(of_device.latency_seconds >= cost.latency_seconds);
      BOOST_TEST((of_device.run_seconds > 0 && of_device.bytes_per_second >= cost.bytes_per_second));
    }
    BOOST_TEST((model.at("carrier-pigeon", host, way) == model.at("ucx", host, way)));
  });
}

BOOST_AUTO_TEST_CASE(built_in_costs_are_about_what_servers_do) {
  const CostModel model;
  const auto speed = [&](const char* transport, Way way, ByteCount run_bytes) {
    constexpr ByteCount bytes = 1u << 30;
    return static_cast<double>(bytes) / model.at(transport, host, way).seconds(bytes, bytes / run_bytes);
  };
  BOOST_TEST(speed("tcp", Way::straight, 512) >= 4e9);
  BOOST_TEST(speed("tcp", Way::straight, 1 << 20) > 5.9e9);
  BOOST_TEST(speed("tcp", Way::packed, 1 << 20) < 2.6e9);
  BOOST_TEST(speed("shm", Way::read, 1 << 20) > 11.5e9);
  BOOST_TEST(speed("shm", Way::read, 4 << 10) < 8e9);
  for (const ByteCount run : {ByteCount{256}, ByteCount{4} << 10, ByteCount{1} << 20, ByteCount{64} << 20}) {
    BOOST_TEST(speed("shm", Way::mapped, run) > speed("shm", Way::read, run));
    BOOST_TEST(speed("shm", Way::mapped, run) > speed("shm", Way::over_read, run));
  }
  BOOST_TEST(speed("shm", Way::mapped, 64 << 10) > 0.8 * speed("local", Way::local, 64 << 10));
}

// What a device copies is a launch and a rate of its own; what is staged is a launch more than for the host's memory.
BOOST_AUTO_TEST_CASE(built_in_costs_of_devices_are_not_the_hosts) {
  const CostModel model;
  for (const Way way : {Way::local, Way::mapped}) {
    const WayCost cost = model.at("shm", cuda, way);
    BOOST_TEST(cost.seconds(1, 1) > model.at("shm", host, way).seconds(1, 1));
    BOOST_TEST(cost.seconds(1u << 30, 1) < model.at("shm", host, way).seconds(1u << 30, 1) / 10);
    BOOST_TEST(cost.seconds(1u << 20, 4096) < model.at("shm", host, way).seconds(1u << 20, 4096));
  }
  BOOST_TEST((model.at("tcp", cuda, Way::packed).latency_seconds > model.at("tcp", host, Way::packed).latency_seconds));
  BOOST_TEST((model.at("ucx", cuda, Way::read) == model.at("ucx", host, Way::read)));
}

BOOST_AUTO_TEST_CASE(what_is_saved_is_loaded_and_the_rest_keeps_its_default) {
  const File file;
  const WayCost cost{.latency_seconds = 1.5e-5, .run_seconds = 2e-8, .bytes_per_second = 3.25e9};
  const WayCost of_device{.latency_seconds = 1e-5, .run_seconds = 3e-8, .bytes_per_second = 200e9};
  save_costs(file.path, "a machine",
             {{"tcp", host, Way::packed, cost}, {"ucx", cuda, Way::read, of_device}, {"shm", host, Way::local, cost}});
  const CostModel model = load_costs(file.path);
  CostModel expected;
  expected.set("tcp", host, Way::packed, cost);
  expected.set("ucx", cuda, Way::read, of_device);
  expected.set("local", host, Way::local, cost);
  BOOST_TEST((model == expected));
  BOOST_TEST((model.tcp() == TcpSettings()));
  BOOST_TEST(model.kernels().entries.empty());
  std::ifstream text(file.path);
  const std::string saved{std::istreambuf_iterator<char>(text), {}};
  for (const char* part :
       {R"("shardwire costs 2")", R"("transport": "local")", R"("memory": "cuda")", R"("machine": "a machine")"}) {
    BOOST_TEST(saved.find(part) != std::string::npos, part);
  }
}

BOOST_AUTO_TEST_CASE(kernels_and_settings_of_tcp_are_kept_beside_costs) {
  const File file;
  const FastestKernels kernels{"a processor", {{"runs to 1 KiB", "sse2"}, {"longer runs, digested", "memcpy"}}};
  const TcpSettings tcp{.request_bytes = 256u << 10, .streams = 4};
  save_costs(file.path, "a machine", {}, kernels, tcp);
  const CostModel model = load_costs(file.path);
  BOOST_TEST((model.kernels() == kernels));
  BOOST_TEST((model.tcp() == tcp));
  CostModel expected;
  BOOST_TEST((model != expected));
  expected.set_kernels(kernels);
  BOOST_TEST((model != expected));
  expected.set_tcp(tcp);
  BOOST_TEST((model == expected));
  file.write(file_of("2", "", R"(,"tcp":{"streams":2})"));
  BOOST_TEST((load_costs(file.path).tcp() == TcpSettings{.streams = 2}));
  file.write(file_of("2", "", R"(,"tcp":{"request_bytes":4096})"));
  BOOST_TEST((load_costs(file.path).tcp() == TcpSettings{.request_bytes = 4096}));
}

BOOST_AUTO_TEST_CASE(entries_of_the_first_version_stand_for_the_transports_of_their_reach) {
  const File file;
  const auto speeds = [](const CostModel& model, Way way) {
    std::string out;
    for (const char* transport : {"local", "loopback", "shm", "tcp", "ucx", "libfabric", "nccl"}) {
      const WayCost cost = model.at(transport, host, way);
      out += cost.bytes_per_second < 100 ? std::to_string(static_cast<int>(cost.bytes_per_second)) : "-";
    }
    return out;
  };
  // In the order: local, loopback, shm, tcp, ucx, libfabric, nccl.
  file.write(file_of("1", first_entry("process", "local", "2")));
  BOOST_TEST(speeds(load_costs(file.path), Way::local) == "2222222");
  file.write(file_of("1", first_entry("process", "packed", "2")));
  BOOST_TEST(speeds(load_costs(file.path), Way::packed) == "-2-----");
  file.write(file_of("1", first_entry("host", "mapped", "3") + "," + first_entry("host", "local", "3")));
  BOOST_TEST(speeds(load_costs(file.path), Way::mapped) == "--3-3--");
  BOOST_TEST(speeds(load_costs(file.path), Way::local) == "-------");
  file.write(file_of("1", first_entry("network", "straight", "4")));
  BOOST_TEST(speeds(load_costs(file.path), Way::straight) == "---444-");
  const std::string near = first_entry("host", "packed", "3");
  const std::string far = first_entry("network", "packed", "4");
  for (const std::string& both : {near + "," + far, far + "," + near}) {
    file.write(file_of("1", both));
    BOOST_TEST(speeds(load_costs(file.path), Way::packed) == "--3444-");
  }
  BOOST_TEST((load_costs(file.path).at("tcp", cuda, Way::packed) == CostModel().at("tcp", cuda, Way::packed)));
}

BOOST_AUTO_TEST_CASE(seconds_grow_with_bytes_and_runs) {
  const WayCost cost{.latency_seconds = 1, .run_seconds = 0.5, .bytes_per_second = 100};
  BOOST_TEST(cost.seconds(0, 0) == 1.0);
  BOOST_TEST(cost.seconds(200, 4) == 5.0);
}

BOOST_AUTO_TEST_CASE(names_are_read_back) {
  each_way([](Way way) { BOOST_TEST((way_from(to_string(way)) == way)); });
  BOOST_TEST(!way_from("teleported").has_value());
  BOOST_TEST(!reach_from("").has_value());
}

BOOST_AUTO_TEST_CASE(files_that_are_none_are_refused_by_name) {
  const File file;
  BOOST_TEST(is_refused(file));  // there is none
  const std::string good = entry("tcp", "host", "packed", "1e9");
  const std::string kernel = R"({"run_bytes_class":"longer runs","kernel":"sse2"})";
  const std::pair<std::string, const char*> bad[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{}", "no text 'format'"},
      {R"({"format":2,"costs":[]})", "no text 'format'"},
      {R"({"format":"other","costs":[]})", "its format is neither"},
      {file_of("3", good), "its format is neither"},
      {R"({"format":"shardwire costs 1"})", "no list 'costs'"},
      {R"({"format":"shardwire costs 2"})", "no list 'costs'"},
      {file_of("2", "7"), "an entry of 'costs' is no object"},
      {file_of("1", good), "no text 'reach'"},
      {file_of("1", first_entry("moon", "packed", "1e9")), "the reach of"},
      {file_of("1", first_entry("host", "teleported", "1e9")), "the way of"},
      {file_of("2", first_entry("host", "packed", "1e9")), "no text 'transport'"},
      {file_of("2", entry("tcp", "tape", "packed", "1e9")), "the memory of"},
      {file_of("2", entry("tcp", "host", "teleported", "1e9")), "the way of"},
      {file_of("2", entry("tcp", "host", "packed", "0")), "'bytes_per_second' of"},
      {file_of("2", entry("tcp", "host", "packed", "null")), "no number 'bytes_per_second'"},
      {file_of("2", R"({"transport":"tcp","memory":"host","way":"packed"})"), "no number 'latency_seconds'"},
      {file_of("2", good, R"(,"kernels":[)" + kernel + "]"), "no text 'processor'"},
      {file_of("2", good, R"(,"processor":"p","kernels":{})"), "no list 'kernels'"},
      {file_of("2", good, R"(,"processor":"p","kernels":[{"kernel":"sse2"}])"), "no text 'run_bytes_class'"},
      {file_of("2", good, R"(,"tcp":4)"), "'tcp' is no object"},
      {file_of("2", good, R"(,"tcp":{"streams":0})"), "'streams' of"},
      {file_of("2", good, R"(,"tcp":{"streams":17})"), "'streams' of"},
      {file_of("2", good, R"(,"tcp":{"streams":1.5})"), "'streams' of"},
      {file_of("2", good, R"(,"tcp":{"request_bytes":-1})"), "'request_bytes' of"},
      {file_of("2", good, R"(,"tcp":{"request_bytes":1e300})"), "'request_bytes' of"},
  };
  for (const auto& [text, why] : bad) {
    file.write(text);
    const std::string refusal = refusal_of(file);
    BOOST_TEST(refusal.find(why) != std::string::npos, text << ": " << refusal);
  }
  file.write(file_of("2", good, R"(,"processor":"p","kernels":[)" + kernel + "]"));
  BOOST_TEST(load_costs(file.path).at("tcp", host, Way::packed).bytes_per_second == 1e9);
}

BOOST_AUTO_TEST_SUITE_END()
