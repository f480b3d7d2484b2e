// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/status.hpp"

#include <cuda.h>
#include <driver_types.h>

namespace shardwire::memory::cuda {

static_assert(int{cudaErrorMemoryAllocation} == int{CUDA_ERROR_OUT_OF_MEMORY} &&
              int{cudaErrorIllegalAddress} == int{CUDA_ERROR_ILLEGAL_ADDRESS} &&
              int{cudaErrorPeerAccessUnsupported} == int{CUDA_ERROR_PEER_ACCESS_UNSUPPORTED});

ErrorCode code_of(int status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
    case cudaErrorTooManyPeers:
    case cudaErrorMpsMaxClientsReached:
    case cudaErrorMpsMaxConnectionsReached: return ErrorCode::out_of_resources;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorHostMemoryNotRegistered:
    case CUDA_ERROR_INVALID_CONTEXT: return ErrorCode::invalid_argument;
    case cudaErrorStubLibrary:
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoDevice:
    case cudaErrorDeviceNotLicensed:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorInvalidPtx:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorSharedObjectSymbolNotFound:
    case cudaErrorSymbolNotFound:
    case cudaErrorNotPermitted:
    case cudaErrorNotSupported:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return ErrorCode::unsupported;
    // A foreign enumeration: every other status of any CUDA version is a failure of the device.
    default: return ErrorCode::transport_failed;
  }
}

bool is_sticky(int status) {
  constexpr int contained = 226;  // CUDA_ERROR_CONTAINED, which older headers lack
  switch (status) {
    case cudaErrorCudartUnloading:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case contained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice: return true;
    default: return false;
  }
}

}  // namespace shardwire::memory::cuda
