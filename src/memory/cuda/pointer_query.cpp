// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/pointer_query.hpp"

#include <algorithm>
#include <array>

namespace shardwire::memory::cuda {
namespace {

// In the order in which driver versions introduced them.
constexpr std::array attributes{
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
    CU_POINTER_ATTRIBUTE_BUFFER_ID,
    CU_POINTER_ATTRIBUTE_IS_MANAGED,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPED,
    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
    CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
    CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
    CU_POINTER_ATTRIBUTE_MAPPING_SIZE,
    CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR,
    CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID,
};
constexpr std::size_t min_known = 8;  // up to MAPPED: required to know anything about a pointer

std::size_t place_of(CUpointer_attribute attribute) {
  return static_cast<std::size_t>(std::ranges::find(attributes, attribute) - attributes.begin());
}

// Answers have 1 to 8 bytes. Each gets 8 zeroed bytes; both architectures that CUDA runs on are little-endian.
struct AttributeValues {
  std::array<std::uint64_t, attributes.size()> values{};

  [[nodiscard]] std::uint64_t operator[](CUpointer_attribute attribute) const { return values[place_of(attribute)]; }
};

CUresult query(PointerQuery::Function function, std::size_t known, std::uint64_t address, AttributeValues& answers) {
  std::array<CUpointer_attribute, attributes.size()> asked = attributes;
  std::array<void*, attributes.size()> data{};
  std::ranges::transform(answers.values, data.begin(), [](std::uint64_t& value) { return &value; });
  return function(static_cast<unsigned>(known), asked.data(), data.data(), address);
}

std::size_t known_to(PointerQuery::Function function) {
  const int anything = 0;  // any host memory will do
  for (std::size_t known = attributes.size(); known > min_known; --known) {
    AttributeValues answers;
    if (query(function, known, reinterpret_cast<std::uintptr_t>(&anything), answers) != CUDA_ERROR_INVALID_VALUE) {
      return known;
    }
  }
  return min_known;
}

}  // namespace

PointerQuery::PointerQuery(Function function) : function_(function), known_(known_to(function)) {
}

PointerFacts PointerQuery::ask(std::uint64_t address, CUresult& status) const {
  AttributeValues answers;
  status = query(function_, known_, address, answers);
  if (status != CUDA_SUCCESS) return {};
  // Without its base the size of a mapping is meaningless.
  const bool knows_mapping = known_ > place_of(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
  return {
      .type = static_cast<PointerFacts::Type>(answers[CU_POINTER_ATTRIBUTE_MEMORY_TYPE]),
      .device = static_cast<int>(static_cast<std::uint32_t>(answers[CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL])),
      .managed = answers[CU_POINTER_ATTRIBUTE_IS_MANAGED] != 0,
      .mapped = answers[CU_POINTER_ATTRIBUTE_MAPPED] != 0,
      .range_start = answers[CU_POINTER_ATTRIBUTE_RANGE_START_ADDR],
      .range_bytes = answers[CU_POINTER_ATTRIBUTE_RANGE_SIZE],
      .mapping_start = knows_mapping ? answers[CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR] : 0,
      .mapping_bytes = knows_mapping ? answers[CU_POINTER_ATTRIBUTE_MAPPING_SIZE] : 0,
      .buffer = answers[CU_POINTER_ATTRIBUTE_BUFFER_ID],
      .block = answers[CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID],
      .handle_types = answers[CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES],
      .pool = answers[CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE],
      .legacy_ipc = answers[CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE] != 0,
      .gpu_direct = answers[CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE] != 0,
  };
}

}  // namespace shardwire::memory::cuda
