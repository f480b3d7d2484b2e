// SPDX-License-Identifier: Apache-2.0
// Meaning of CUDA statuses, and those after which a device is unusable.
#include "memory/cuda/status.hpp"

#include <cuda.h>
#include <driver_types.h>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>

BOOST_AUTO_TEST_SUITE(cuda_status)

namespace {

namespace data = boost::unit_test::data;
using namespace shardwire;
using memory::cuda::code_of;
using memory::cuda::is_sticky;

struct Meaning {
  int status;
  ErrorCode code;
  bool sticky;
};
std::ostream& operator<<(std::ostream& out, const Meaning& meaning) {
  return out << "CUDA status " << meaning.status;
}

constexpr Meaning meanings[] = {
    {cudaErrorMemoryAllocation, ErrorCode::out_of_resources, false},
    {CUDA_ERROR_OUT_OF_MEMORY, ErrorCode::out_of_resources, false},
    {cudaErrorInvalidDevice, ErrorCode::invalid_argument, false},
    {cudaErrorInvalidResourceHandle, ErrorCode::invalid_argument, false},
    {CUDA_ERROR_INVALID_VALUE, ErrorCode::invalid_argument, false},
    {cudaErrorInsufficientDriver, ErrorCode::unsupported, false},
    {cudaErrorNoDevice, ErrorCode::unsupported, false},
    {cudaErrorPeerAccessUnsupported, ErrorCode::unsupported, false},
    {CUDA_ERROR_NOT_SUPPORTED, ErrorCode::unsupported, false},
    {cudaErrorNoKernelImageForDevice, ErrorCode::unsupported, false},
    {cudaErrorIllegalAddress, ErrorCode::transport_failed, true},
    {cudaErrorLaunchFailure, ErrorCode::transport_failed, true},
    {cudaErrorMisalignedAddress, ErrorCode::transport_failed, true},
    {CUDA_ERROR_ECC_UNCORRECTABLE, ErrorCode::transport_failed, true},
    {cudaErrorNvlinkUncorrectable, ErrorCode::transport_failed, true},
    {cudaErrorContextIsDestroyed, ErrorCode::transport_failed, true},
    {cudaErrorLaunchOutOfResources, ErrorCode::transport_failed, false},
    {cudaErrorUnknown, ErrorCode::transport_failed, false},
    {12345, ErrorCode::transport_failed, false},
};

}  // namespace

BOOST_DATA_TEST_CASE(a_status_says_what_the_caller_can_do, data::make(meanings), meaning) {
  BOOST_TEST(to_string(code_of(meaning.status)) == to_string(meaning.code));
  BOOST_TEST(is_sticky(meaning.status) == meaning.sticky);
}

BOOST_AUTO_TEST_SUITE_END()
