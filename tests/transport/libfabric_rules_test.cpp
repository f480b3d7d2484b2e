// SPDX-License-Identifier: Apache-2.0
// Providers' answers and the rules derived from them. A fake fi_getinfo returns the answers of providers whose hardware
// is missing here.
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <ostream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "support/deadline.hpp"
#include "support/forked.hpp"
#include "transport/gpu_driver.hpp"
#include "transport/libfabric/caches.hpp"
#include "transport/libfabric/provider.hpp"
#include "transport/libfabric/registration.hpp"

BOOST_AUTO_TEST_SUITE(libfabric_rules)

using namespace shardwire;
using namespace std::chrono_literals;
using namespace shardwire::transport::libfabric;

namespace {

constexpr std::uint32_t v1_17 = FI_VERSION(1, 17);
constexpr std::uint32_t v1_18 = FI_VERSION(1, 18);
constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

/// The fields of an answer from which rules are derived.
struct Shape {
  const char* provider;
  const char* device;
  std::uint64_t mr_mode;
  std::size_t key_bytes;
  std::size_t max_msg_size;
  std::size_t tx_size;
  std::uint32_t format;
  std::uint64_t mode = 0;
  std::uint64_t caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ;
  fi_threading threading = FI_THREAD_SAFE;
};

// Observed for tcp, shm and verbs (on rxe) with libfabric 1.17; for efa and cxi, from the attributes in their sources.
const Shape tcp{"tcp;ofi_rxm", "lo", 0, 8, unlimited, 2048, FI_SOCKADDR_IN};
const Shape shm{"shm", "shm", FI_MR_VIRT_ADDR, 8, unlimited, 1024, FI_ADDR_STR};
const Shape verbs{
    "verbs;ofi_rxm", "rxe0", FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, 4, 8 << 20, 384,
    FI_SOCKADDR_IN};
const Shape efa{"efa", "rdmap0s6-rdm", FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY, 8, unlimited,
                256,   FI_ADDR_EFA};
const Shape efa_direct{
    "efa-direct", "rdmap0s6-rdm", efa.mr_mode, 4, 1 << 30, 256, FI_ADDR_EFA, FI_CONTEXT2,
};
const Shape cxi{"cxi", "cxi0", FI_MR_ENDPOINT | FI_MR_ALLOCATED, 8, (1ULL << 32) - 1, 32, FI_SOCKADDR_IB};

Info info_of(const Shape& shape) {
  Info info(fi_allocinfo());
  info->fabric_attr->prov_name = ::strdup(shape.provider);
  info->domain_attr->name = ::strdup(shape.device);
  info->domain_attr->mr_mode = static_cast<int>(shape.mr_mode);
  info->domain_attr->mr_key_size = shape.key_bytes;
  info->domain_attr->threading = shape.threading;
  info->ep_attr->max_msg_size = shape.max_msg_size;
  info->tx_attr->size = shape.tx_size;
  info->ep_attr->protocol = FI_PROTO_RXM;
  info->ep_attr->protocol_version = 1;
  info->addr_format = shape.format;
  info->mode = shape.mode;
  info->caps = shape.caps;
  return info;
}

Rules rules_of(const Shape& shape, std::uint32_t version = v1_17) {
  const auto judged = rules_from(*info_of(shape), version);
  if (const auto* refusal = std::get_if<std::string>(&judged)) throw std::runtime_error(*refusal);
  return std::get<Rules>(judged);
}

std::string refusal_of(const Shape& shape) {
  const auto judged = rules_from(*info_of(shape), v1_17);
  const auto* refusal = std::get_if<std::string>(&judged);
  return refusal == nullptr ? "" : *refusal;
}

// Replaces the library's function.
std::vector<Shape> answers;
std::vector<Shape> answers_for_devices;  // answers to requests for GPU memory
int asked_mr_mode = 0;
int fake_getinfo(std::uint32_t version, const char*, const char*, std::uint64_t, const fi_info* hints, fi_info** out) {
  if (version != v1_17) return -FI_EINVAL;
  const bool devices = (hints->caps & FI_HMEM) != 0;
  if (devices != ((hints->domain_attr->mr_mode & FI_MR_HMEM) != 0)) return -FI_EINVAL;
  if (!devices) asked_mr_mode = hints->domain_attr->mr_mode;
  const std::vector<Shape>& all = devices ? answers_for_devices : answers;
  *out = nullptr;
  for (auto next = all.rbegin(); next != all.rend(); ++next) {
    fi_info* const one = info_of(*next).release();
    one->next = *out;
    *out = one;
  }
  return all.empty() ? -FI_ENODATA : 0;
}
Provider found_among(std::vector<Shape> shapes, bool named = false) {
  answers = std::move(shapes);
  return find_provider(fake_getinfo, v1_17, named, false);
}
Provider found_for_gpus(std::vector<Shape> plain, std::vector<Shape> with_devices) {
  answers = std::move(plain);
  answers_for_devices = std::move(with_devices);
  return find_provider(fake_getinfo, v1_17, true, true);
}
Shape with_devices(Shape shape) {
  shape.caps |= FI_HMEM;
  shape.mr_mode |= FI_MR_HMEM;
  return shape;
}

}  // namespace

BOOST_AUTO_TEST_CASE(tcp_has_offsets_keys_of_ours_and_no_registration_of_what_is_read_into) {
  const Rules expected{.provider = "tcp;ofi_rxm",
                       .device = "lo",
                       .hardware = false,
                       .virtual_addresses = false,
                       .provider_keys = false,
                       .bound_regions = false,
                       .local_registration = false,
                       .close_ends_reads = false,
                       .largest_key = ~std::uint64_t{0},
                       .max_read_bytes = unlimited,
                       .window = 64,
                       .address_format = FI_SOCKADDR_IN,
                       .protocol = FI_PROTO_RXM,
                       .protocol_version = 1};
  BOOST_TEST((rules_of(tcp) == expected));
  BOOST_TEST(rules_of(tcp, v1_18).close_ends_reads);
}

BOOST_AUTO_TEST_CASE(verbs_has_addresses_keys_of_its_own_and_reads_into_registered_memory_only) {
  const Rules expected{.provider = "verbs;ofi_rxm",
                       .device = "rxe0",
                       .hardware = true,
                       .virtual_addresses = true,
                       .provider_keys = true,
                       .bound_regions = false,
                       .local_registration = true,
                       .close_ends_reads = true,
                       .largest_key = 0xffffffff,
                       .max_read_bytes = 8 << 20,
                       .window = 64,
                       .address_format = FI_SOCKADDR_IN,
                       .protocol = FI_PROTO_RXM,
                       .protocol_version = 1};
  BOOST_TEST((rules_of(verbs) == expected));
}

BOOST_AUTO_TEST_CASE(efa_is_like_verbs_with_longer_keys) {
  const Rules rules = rules_of(efa);
  BOOST_TEST(rules.hardware);
  BOOST_TEST(rules.virtual_addresses);
  BOOST_TEST(rules.provider_keys);
  BOOST_TEST(rules.local_registration);
  BOOST_TEST(!rules.bound_regions);
  BOOST_TEST(rules.largest_key == ~std::uint64_t{0});
}

BOOST_AUTO_TEST_CASE(cxi_binds_regions_to_an_endpoint_and_lets_us_choose_keys_and_counts_from_0) {
  const Rules rules = rules_of(cxi);
  BOOST_TEST(rules.hardware);
  BOOST_TEST(rules.bound_regions);
  BOOST_TEST(!rules.virtual_addresses);
  BOOST_TEST(!rules.provider_keys);
  BOOST_TEST(!rules.local_registration);
  BOOST_TEST(rules.max_read_bytes == (1ULL << 32) - 1);
  BOOST_TEST(rules.window == 32U);  // the device's limit
}

BOOST_AUTO_TEST_CASE(shm_is_refused_since_it_checks_no_key) {
  BOOST_TEST(refusal_of(shm) == "it reads whatever address a peer names and checks no key");
  BOOST_TEST(refusal_of(efa_direct).find("use efa") != std::string::npos);
  Shape other = tcp;
  for (const char* name : {"tcp", "net"}) {
    other.provider = name;
    BOOST_TEST(refusal_of(other).find("use tcp;ofi_rxm") != std::string::npos);
  }
  other.provider = "sockets";
  BOOST_TEST(refusal_of(other) == "it is not known to check keys");
}

BOOST_AUTO_TEST_CASE(what_is_wanted_and_not_known_here_is_refused) {
  const auto refused = [](auto change, const char* why) {
    Shape shape = verbs;
    change(shape);
    BOOST_TEST(refusal_of(shape).find(why) != std::string::npos, refusal_of(shape));
  };
  BOOST_TEST(refusal_of(verbs).empty());
  refused([](Shape& s) { s.mr_mode |= FI_MR_RAW; }, "wants more of registered memory");
  refused([](Shape& s) { s.mr_mode |= FI_MR_RMA_EVENT; }, "wants more of registered memory");
  refused([](Shape& s) { s.mr_mode |= FI_MR_MMU_NOTIFY; }, "wants more of registered memory");
  refused([](Shape& s) { s.mode |= FI_MSG_PREFIX; }, "wants more of its caller");
  refused([](Shape& s) { s.mode |= FI_RX_CQ_DATA; }, "wants more of its caller");
  refused([](Shape& s) { s.key_bytes = 16; }, "its keys have 16 bytes");
  refused([](Shape& s) { s.key_bytes = 0; }, "its keys have 0 bytes");
  refused([](Shape& s) { s.caps &= ~FI_REMOTE_READ; }, "no one-sided reads");
  refused([](Shape& s) { s.caps &= ~FI_RMA; }, "no one-sided reads");
  refused([](Shape& s) { s.max_msg_size = 0; }, "no room");
  refused([](Shape& s) { s.tx_size = 0; }, "no room");
  refused([](Shape& s) { s.threading = FI_THREAD_DOMAIN; }, "one thread only");
  Shape registering = tcp;
  registering.mr_mode = FI_MR_LOCAL;
  BOOST_TEST(!refusal_of(registering).empty());
}

BOOST_AUTO_TEST_CASE(a_context_is_given_to_who_asks_for_one) {
  Shape shape = verbs;
  for (const std::uint64_t mode : {std::uint64_t{FI_CONTEXT}, std::uint64_t{FI_CONTEXT2}}) {
    shape.mode = mode;
    BOOST_TEST(refusal_of(shape).empty());
  }
}

// One of them would read at a wrong address, or reject a valid key.
BOOST_AUTO_TEST_CASE(sides_that_differ_in_what_a_key_means_do_not_match) {
  const auto differs = [](auto change) {
    Shape shape = verbs;
    change(shape);
    return protocol_of(rules_of(shape)) != protocol_of(rules_of(verbs));
  };
  BOOST_TEST(differs([](Shape& s) { s.mr_mode &= ~std::uint64_t{FI_MR_VIRT_ADDR}; }));
  BOOST_TEST(differs([](Shape& s) { s.mr_mode &= ~std::uint64_t{FI_MR_PROV_KEY}; }));
  BOOST_TEST(differs([](Shape& s) { s.key_bytes = 8; }));
  BOOST_TEST(differs([](Shape& s) { s.provider = "efa"; }));
  BOOST_TEST(differs([](Shape& s) { s.format = FI_SOCKADDR_IN6; }));
  // Requirements on the local side only.
  BOOST_TEST(!differs([](Shape& s) { s.mr_mode &= ~std::uint64_t{FI_MR_LOCAL}; }));
  BOOST_TEST(!differs([](Shape& s) { s.device = "mlx5_1"; }));
  BOOST_TEST(!differs([](Shape& s) { s.tx_size = 16; }));
}

BOOST_AUTO_TEST_CASE(hardware_is_taken_before_software_and_software_when_it_is_named_only) {
  BOOST_TEST(found_among({tcp, shm, verbs}).rules.provider == "verbs;ofi_rxm");
  BOOST_TEST(found_among({tcp, efa}, true).rules.provider == "efa");
  BOOST_TEST(found_among({cxi, efa}).rules.provider == "cxi");
  BOOST_TEST(found_among({shm, tcp}, true).rules.provider == "tcp;ofi_rxm");
  const Provider unasked = found_among({shm, tcp});
  BOOST_TEST(!unasked.info);
  BOOST_TEST(
      unasked.why_not ==
      "no provider is fit for reads; shm: it reads whatever address a peer names and checks no key; tcp;ofi_rxm: no "
      "hardware reads for it; FI_PROVIDER has to name it");
  BOOST_TEST((asked_mr_mode & FI_MR_ENDPOINT) != 0);
  BOOST_TEST((asked_mr_mode & FI_MR_LOCAL) != 0);
}

BOOST_AUTO_TEST_CASE(memory_of_gpus_is_taken_where_a_provider_of_hardware_has_it_and_nothing_else_differs) {
  const Provider both = found_for_gpus({tcp, efa}, {with_devices(efa)});
  BOOST_TEST(both.rules.device_memory);
  BOOST_TEST((both.info->caps & FI_HMEM) != 0U);
  BOOST_TEST(protocol_of(both.rules) == protocol_of(rules_of(efa)));  // a peer without GPUs matches
  const auto plain = [](const Provider& found, const char* provider) {
    return found.rules.provider == provider && !found.rules.device_memory && (found.info->caps & FI_HMEM) == 0;
  };
  BOOST_TEST(plain(found_for_gpus({verbs}, {}), "verbs;ofi_rxm"));
  BOOST_TEST(plain(found_for_gpus({verbs}, {verbs}), "verbs;ofi_rxm"));  // asked for GPU memory, which it lacks
  Shape other = with_devices(verbs);
  other.device = "mlx5_1";
  BOOST_TEST(plain(found_for_gpus({verbs}, {other}), "verbs;ofi_rxm"));
  other = with_devices(efa);
  other.mr_mode &= ~std::uint64_t{FI_MR_VIRT_ADDR};
  BOOST_TEST(plain(found_for_gpus({efa}, {other}), "efa"));
  BOOST_TEST(plain(found_for_gpus({tcp}, {with_devices(tcp)}), "tcp;ofi_rxm"));
}

BOOST_AUTO_TEST_CASE(a_provider_that_wants_device_memory_registered_and_does_not_take_it_is_refused) {
  Shape shape = verbs;
  shape.mr_mode |= FI_MR_HMEM;
  BOOST_TEST(refusal_of(shape).find("device memory") != std::string::npos, refusal_of(shape));
}

BOOST_AUTO_TEST_CASE(no_provider_at_all_is_said) {
  const Provider none = found_among({});
  BOOST_TEST(!none.info);
  BOOST_TEST(none.why_not.find("no provider reads by itself here") == 0U, none.why_not);
  BOOST_TEST(!found_among({shm}, true).info);
}

// Each case runs in its own process: libfabric reads its variables once.
BOOST_AUTO_TEST_CASE(libfabric_is_told_of_no_caches_when_it_reads_its_variables) {
  const auto require = [](bool held, const char* what) {
    if (!held) throw std::runtime_error(what);
  };
  const test::Deadline deadline(120s);
  test::Forked child([&](int) {
    ::setenv("FI_PROVIDER", "tcp", 1);
    ::setenv("FI_LOG_LEVEL", "info", 1);  // logs the variables that it reads
    std::FILE* const said = std::tmpfile();
    ::dup2(::fileno(said), STDERR_FILENO);
    require(!is_initialised(), "it was initialised already");
    require(why_caches_may_be_on().empty(), "a warning without a reason");
    find_provider(transport::Asked::by_name);
    require(is_initialised(), "that it was initialised is not noticed");
    std::fflush(stderr);
    std::rewind(said);
    std::string text;
    for (int one = std::fgetc(said); one != EOF; one = std::fgetc(said)) text += static_cast<char>(one);
    require(text.find("mr_cache_max_count=0") != std::string::npos, "it has not read that there are no caches");
    require(why_caches_may_be_on().empty(), "a warning of what we have done ourselves");
  });
  BOOST_TEST(child.reap() == 0);
  test::Forked late([&](int) {
    ::setenv("FI_PROVIDER", "tcp", 1);
    ::unsetenv("FI_MR_CACHE_MAX_COUNT");
    fi_info* found = nullptr;
    fi_getinfo(v1_17, nullptr, nullptr, 0, nullptr, &found);
    fi_freeinfo(found);
    require(why_caches_may_be_on().find("FI_MR_CACHE_MAX_COUNT=0") != std::string::npos, "no warning that it is late");
    require(find_provider(transport::Asked::by_name).warning.empty(), "software has no caches");
  });
  BOOST_TEST(late.reap() == 0);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_closed_is_counted_and_said_once) {
  static int closed = 0;
  static int status = -FI_EBUSY;
  fi_ops ops{};
  ops.size = sizeof ops;
  ops.close = [](fid*) {
    ++closed;
    return status;
  };
  fid_mr busy{};
  busy.fid.fclass = FI_CLASS_MR;
  busy.fid.ops = &ops;
  BOOST_TEST(take_unclosed().empty());
  RegistrationHandle(&busy).reset();
  RegistrationHandle(&busy).reset();
  BOOST_TEST(closed == 2);  // once each
  const std::string said = take_unclosed();
  BOOST_TEST(said.find("has not closed 2 of its objects, last a registration of memory") != std::string::npos, said);
  BOOST_TEST(take_unclosed().empty());
  status = 0;
  RegistrationHandle(&busy).reset();
  BOOST_TEST(take_unclosed().empty());
}

BOOST_AUTO_TEST_CASE(an_efa_is_asked_whether_it_reads_by_messages) {
  static int status = 0;
  static bool emulated = false;
  fi_ops_ep ops{};
  ops.size = sizeof ops;
  ops.getopt = [](fid_t, int level, int option, void* value, std::size_t* bytes) {
    constexpr int emulated_read = -0xefa0000 + 1;  // in the provider's numbering
    if (level != FI_OPT_ENDPOINT || option != emulated_read || *bytes < sizeof emulated) return -FI_EINVAL;
    std::memcpy(value, &emulated, sizeof emulated);
    return status;
  };
  fid_ep endpoint{};
  endpoint.ops = &ops;
  BOOST_TEST((emulates_reads(endpoint) == false));
  emulated = true;
  BOOST_TEST((emulates_reads(endpoint) == true));
  status = -FI_ENOPROTOOPT;
  BOOST_TEST(!emulates_reads(endpoint).has_value());
}

// Over TCP, which needs neither, with rules like those of a NIC.
BOOST_AUTO_TEST_CASE(what_cannot_be_registered_rules_out_its_device_alone_and_a_region_is_registered_once) {
  const test::Deadline deadline(120s);
  const auto require = [](bool held, const std::string& what) {
    if (!held) throw std::runtime_error(what);
  };
  test::Forked child([&](int) {
    ::setenv("FI_PROVIDER", "tcp", 1);
    ::setenv("FI_TCP_IFACE", "lo", 1);
    test::driver = std::make_shared<test::Driver>();
    transport::GpuDirect gpus({.find_devices = test::find_devices, .try_with = [](const auto&) {}, .host = {}});
    Provider provider = find_provider(transport::Asked::by_name);
    provider.rules.local_registration = true;
    provider.rules.device_memory = true;
    provider.rules.largest_key = 0;  // one key, and so one registration
    const auto domain = std::make_shared<Domain>(std::move(provider));
    std::vector<std::byte> host(100);
    const std::vector<transport::ReadRange> ranges{
        {0, transport::host_memory(host)},
        {0, {test::driver->storage.data(), 100, {MemoryKind::cuda, 0}}},
    };
    const auto fails = [&](ErrorCode code, std::size_t first, std::size_t count, const char* why) {
      try {
        (void)register_ranges(*domain, nullptr, std::span(ranges).subspan(first, count), gpus);
        throw std::runtime_error("it is registered");
      } catch (const Error& error) {
        require(error.code() == code && std::string_view(error.what()).find(why) != std::string_view::npos,
                error.what());
      }
    };
    auto taken = domain->register_memory(ranges[0].into, FI_REMOTE_READ, nullptr);
    fails(ErrorCode::out_of_resources, 0, 1, "limit of locked memory");
    require(gpus.why_not(0).empty(), "host memory that was not registered rules out a device");
    taken.reset();
    test::driver->allocation.managed = true;
    fails(ErrorCode::unsupported, 0, 2, "managed memory");
    require(gpus.why_not(0).empty(), "one allocation rules out its device");
    test::driver->allocation.managed = false;
    taken = domain->register_memory(ranges[0].into, FI_REMOTE_READ, nullptr);
    fails(ErrorCode::unsupported, 1, 1, "bytes of a device");
    require(!gpus.why_not(0).empty(), "a device whose memory is not taken is promised again");
    taken.reset();
    provider = find_provider(transport::Asked::by_name);
    provider.rules.local_registration = true;
    provider.rules.hardware = true;
    provider.rules.largest_key = 0;
    const auto once = std::make_shared<Domain>(std::move(provider));
    const auto region = allocate_region(once, nullptr, 1, 100, {});
    const transport::ReadRange into{0, region->memory().part(10, 20)};
    require(register_ranges(*once, nullptr, std::span(&into, 1), gpus).descriptors.size() == 1, "no descriptor");
  });
  BOOST_TEST(child.reap() == 0);
}

BOOST_AUTO_TEST_SUITE_END()
