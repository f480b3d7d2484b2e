// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <boost/test/unit_test.hpp>

#include <unistd.h>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "move/tuning.hpp"
#include "shardwire/error.hpp"
#include "transport/transport.hpp"

BOOST_AUTO_TEST_SUITE(costs)

using namespace shardwire;

namespace {

struct File {
  std::string path = (std::filesystem::temp_directory_path() / ("costs-" + std::to_string(::getpid()))).string();
  ~File() { std::filesystem::remove(path); }
  void write(const std::string& text) const { std::ofstream(path) << text; }
};

// The reason of the refusal; empty if the file is accepted, or if the error does not name it.
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
constexpr const char* known[] = {"loopback", "shm", "tcp", "tcp_encrypted", "ucx", "libfabric", "nccl"};

template <typename Visit>
void each_method(Visit visit) {
  for (std::size_t method = 0; method < method_count; ++method) visit(static_cast<Method>(method));
}

// `bytes_per_second` distinguishes entries.
std::string entry(const char* transport, const char* memory, const char* method, const char* bytes_per_second) {
  return std::string(R"({"transport":")") + transport + R"(","memory":")" + memory + R"(","method":")" + method +
         R"(","latency_seconds":1e-6,"run_seconds":0,"bytes_per_second":)" + bytes_per_second + "}";
}
std::string file_of(const char* version, const std::string& costs, const std::string& more = "") {
  return std::string(R"({"format":"shardwire costs )") + version + R"(","costs":[)" + costs + "]" + more + "}";
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_cost_that_is_set_is_that_of_one_transport_memory_and_method) {
  const MethodCost cost{.latency_seconds = 1, .run_seconds = 2, .bytes_per_second = 3};
  for (const char* transport : {"tcp", "carrier-pigeon"}) {
    CostModel model;
    model.set(transport, host, Method::packed, cost);
    BOOST_TEST((model.at(transport, host, Method::packed) == cost));
    BOOST_TEST((model.at(transport, MemoryKind::detect, Method::packed) == cost));
    BOOST_TEST((model.at(transport, cuda, Method::packed) == CostModel().at(transport, cuda, Method::packed)));
    BOOST_TEST((model.at(transport, host, Method::zcopy) == CostModel().at(transport, host, Method::zcopy)));
    BOOST_TEST((model.at("ucx", host, Method::packed) == CostModel().at("ucx", host, Method::packed)));
    BOOST_TEST((model != CostModel()));
    model.set(transport, host, Method::packed, CostModel().at(transport, host, Method::packed));
    BOOST_TEST((model == CostModel()));
  }
}

// On a slow network the time of encryption counts for less, and is never left out.
BOOST_AUTO_TEST_CASE(encrypted_tcp_costs_what_tcp_does_and_the_time_of_encryption_unless_it_is_set) {
  CostModel model;
  const auto ratio = [&](Method method) {
    return model.at("tcp_encrypted", host, method).bytes_per_second / model.at("tcp", host, method).bytes_per_second;
  };
  BOOST_TEST(std::abs(ratio(Method::zcopy) - 0.48) < 0.01);
  each_method([&](Method method) {
    const bool message = method == Method::zcopy || method == Method::packed;
    for (const MemoryKind memory : {host, cuda}) {
      const MethodCost open = model.at("tcp", memory, method);
      const MethodCost encrypted = model.at("tcp_encrypted", memory, method);
      BOOST_TEST((encrypted.seconds(1u << 20, 7) > open.seconds(1u << 20, 7)) == message);
      BOOST_TEST((encrypted == open) == !message);
    }
  });
  const MethodCost slow{.latency_seconds = 1e-3, .run_seconds = 1e-6, .bytes_per_second = 1e9};
  model.set("tcp", host, Method::zcopy, slow);
  BOOST_TEST(ratio(Method::zcopy) > 0.8);
  BOOST_TEST(ratio(Method::zcopy) < 0.9);
  BOOST_TEST(model.at("tcp_encrypted", host, Method::zcopy).latency_seconds == 1e-3);
  model.set("tcp", host, Method::packed, {.bytes_per_second = 1});
  BOOST_TEST(model.at("tcp_encrypted", host, Method::packed).bytes_per_second == 1.0);  // the least of a file
  const MethodCost measured{.latency_seconds = 2e-3, .run_seconds = 1e-6, .bytes_per_second = 5e8};
  model.set("tcp_encrypted", host, Method::zcopy, measured);
  BOOST_TEST((model.at("tcp_encrypted", host, Method::zcopy) == measured));
  BOOST_TEST((model.at("tcp", host, Method::zcopy) == slow));
}

BOOST_AUTO_TEST_CASE(models_are_equal_if_their_costs_are_whether_set_or_not) {
  const MethodCost slow{.latency_seconds = 1e-3, .run_seconds = 1e-6, .bytes_per_second = 1e9};
  CostModel one;
  one.set("tcp", host, Method::zcopy, slow);
  CostModel other = one;
  other.set("tcp_encrypted", host, Method::zcopy, one.at("tcp_encrypted", host, Method::zcopy));
  BOOST_TEST((one == other));
  other.set("tcp_encrypted", host, Method::zcopy, CostModel().at("tcp_encrypted", host, Method::zcopy));
  BOOST_TEST((one != other));
  BOOST_TEST((other != one));
}

BOOST_AUTO_TEST_CASE(local_copies_belong_to_no_transport) {
  const MethodCost cost{.latency_seconds = 1, .run_seconds = 2, .bytes_per_second = 3};
  CostModel model;
  model.set("shm", host, Method::local, cost);
  for (const char* transport : {"local", "", "tcp", "ucx"}) {
    BOOST_TEST((model.at(transport, host, Method::local) == cost));
  }
  BOOST_TEST((model.at("local", cuda, Method::local) != cost));
}

BOOST_AUTO_TEST_CASE(built_in_costs_of_a_transport_are_those_of_its_line_in_the_registry) {
  const CostModel model;
  for (const transport::Transport& one : transport::registered()) {
    for (const transport::BuiltInCost& line : one.costs) {
      BOOST_TEST((model.at(one.name, host, line.method) == line.cost));
    }
  }
}

BOOST_AUTO_TEST_CASE(every_method_has_a_cost_over_every_transport_known_or_not) {
  const CostModel model;
  each_method([&](Method method) {
    for (const char* transport : known) {
      const MethodCost cost = model.at(transport, host, method);
      BOOST_TEST((cost.latency_seconds > 0 && cost.run_seconds > 0 && cost.bytes_per_second > 1e9));
      const MethodCost of_device = model.at(transport, cuda, method);
      BOOST_TEST(of_device.latency_seconds >= cost.latency_seconds);
      BOOST_TEST((of_device.run_seconds > 0 && of_device.bytes_per_second >= cost.bytes_per_second));
    }
    BOOST_TEST((model.at("carrier-pigeon", host, method) == model.at("ucx", host, method)));
  });
}

BOOST_AUTO_TEST_CASE(built_in_costs_are_about_what_servers_do) {
  const CostModel model;
  const auto speed = [&](const char* transport, Method method, ByteCount run_bytes) {
    constexpr ByteCount bytes = 1u << 30;
    return static_cast<double>(bytes) / model.at(transport, host, method).seconds(bytes, bytes / run_bytes);
  };
  BOOST_TEST(speed("tcp", Method::zcopy, 512) >= 4e9);
  BOOST_TEST(speed("tcp", Method::zcopy, 1 << 20) > 5.9e9);
  BOOST_TEST(speed("tcp", Method::packed, 1 << 20) < 2.6e9);
  BOOST_TEST(speed("shm", Method::read, 1 << 20) > 11.5e9);
  BOOST_TEST(speed("shm", Method::read, 4 << 10) < 8e9);
  for (const ByteCount run : {ByteCount{256}, ByteCount{4} << 10, ByteCount{1} << 20, ByteCount{64} << 20}) {
    BOOST_TEST(speed("shm", Method::mapped, run) > speed("shm", Method::read, run));
    BOOST_TEST(speed("shm", Method::mapped, run) > speed("shm", Method::sieved_read, run));
  }
  BOOST_TEST(speed("shm", Method::mapped, 64 << 10) > 0.8 * speed("local", Method::local, 64 << 10));
}

// Copies by a device have a launch cost and a rate of their own; staged copies cost one launch more than those of host
// memory.
BOOST_AUTO_TEST_CASE(built_in_costs_of_devices_are_not_the_hosts) {
  const CostModel model;
  for (const Method method : {Method::local, Method::mapped}) {
    const MethodCost cost = model.at("shm", cuda, method);
    BOOST_TEST(cost.seconds(1, 1) > model.at("shm", host, method).seconds(1, 1));
    BOOST_TEST(cost.seconds(1u << 30, 1) < model.at("shm", host, method).seconds(1u << 30, 1) / 10);
    BOOST_TEST(cost.seconds(1u << 20, 4096) < model.at("shm", host, method).seconds(1u << 20, 4096));
  }
  BOOST_TEST(
      (model.at("tcp", cuda, Method::packed).latency_seconds > model.at("tcp", host, Method::packed).latency_seconds));
  BOOST_TEST((model.at("ucx", cuda, Method::read) == model.at("ucx", host, Method::read)));
}

BOOST_AUTO_TEST_CASE(what_is_saved_is_loaded_and_the_rest_keeps_its_default) {
  const File file;
  const MethodCost cost{.latency_seconds = 1.5e-5, .run_seconds = 2e-8, .bytes_per_second = 3.25e9};
  const MethodCost of_device{.latency_seconds = 1e-5, .run_seconds = 3e-8, .bytes_per_second = 200e9};
  save_costs(file.path, "a machine",
             {{"tcp", host, Method::packed, cost},
              {"ucx", cuda, Method::read, of_device},
              {"shm", host, Method::local, cost}});
  const CostModel model = load_costs(file.path);
  CostModel expected;
  expected.set("tcp", host, Method::packed, cost);
  expected.set("ucx", cuda, Method::read, of_device);
  expected.set("local", host, Method::local, cost);
  BOOST_TEST((model == expected));
  BOOST_TEST((model.tuning().tcp == TcpSettings()));
  BOOST_TEST(model.tuning().kernels.entries.empty());
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
  save_calibration(file.path, "a machine", {}, kernels, tcp);
  const CostModel model = load_costs(file.path);
  BOOST_TEST((model.tuning().kernels == kernels));
  BOOST_TEST((model.tuning().tcp == tcp));
  CostModel expected;
  BOOST_TEST((model != expected));
  expected.set_tuning({.kernels = kernels});
  BOOST_TEST((model != expected));
  expected.set_tuning({.tcp = tcp, .kernels = kernels});
  BOOST_TEST((model == expected));
  file.write(file_of("2", "", R"(,"tcp":{"streams":2})"));
  BOOST_TEST((load_costs(file.path).tuning().tcp == TcpSettings{.streams = 2}));
  file.write(file_of("2", "", R"(,"tcp":{"request_bytes":4096})"));
  BOOST_TEST((load_costs(file.path).tuning().tcp == TcpSettings{.request_bytes = 4096}));
}

BOOST_AUTO_TEST_CASE(seconds_grow_with_bytes_and_runs) {
  const MethodCost cost{.latency_seconds = 1, .run_seconds = 0.5, .bytes_per_second = 100};
  BOOST_TEST(cost.seconds(0, 0) == 1.0);
  BOOST_TEST(cost.seconds(200, 4) == 5.0);
}

BOOST_AUTO_TEST_CASE(names_are_read_back) {
  each_method([](Method method) { BOOST_TEST((method_from(to_string(method)) == method)); });
  BOOST_TEST(!method_from("teleported").has_value());
}

BOOST_AUTO_TEST_CASE(files_that_are_none_are_refused_by_name) {
  const File file;
  BOOST_TEST(is_refused(file));  // the file does not exist
  const std::string good = entry("tcp", "host", "packed", "1e9");
  const std::string kernel = R"({"run_bytes_class":"longer runs","kernel":"sse2"})";
  const std::pair<std::string, const char*> bad[] = {
      {"", "no JSON object"},
      {"[]", "no JSON object"},
      {"{}", "no text 'format'"},
      {R"({"format":2,"costs":[]})", "no text 'format'"},
      {R"({"format":"other","costs":[]})", "its format is 'other', not 'shardwire costs 2'"},
      {file_of("1", good), "its format is 'shardwire costs 1', not"},
      {file_of("3", good), "its format is 'shardwire costs 3', not"},
      {R"({"format":"shardwire costs 2"})", "no list 'costs'"},
      {file_of("2", "7"), "an entry of 'costs' is no object"},
      {file_of("2", R"({"memory":"host","method":"packed"})"), "no text 'transport'"},
      {file_of("2", entry("tcp", "tape", "packed", "1e9")), "the memory of"},
      {file_of("2", entry("tcp", "host", "teleported", "1e9")), "the method of"},
      {file_of("2", entry("tcp", "host", "packed", "0")), "'bytes_per_second' of"},
      {file_of("2", entry("tcp", "host", "packed", "null")), "no number 'bytes_per_second'"},
      {file_of("2", R"({"transport":"tcp","memory":"host","method":"packed"})"), "no number 'latency_seconds'"},
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
  BOOST_TEST(load_costs(file.path).at("tcp", host, Method::packed).bytes_per_second == 1e9);
}

BOOST_AUTO_TEST_SUITE_END()
