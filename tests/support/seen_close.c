/* SPDX-License-Identifier: Apache-2.0 */
/* The thread sanitizer sees descriptors open and close in the calls of libc that it intercepts. Debian's libuv closes them with
   syscall(SYS_close), so the sanitizer takes a later descriptor of the same number for the one before, and reports a race between
   the close of one and the use of the other. This syscall() comes before libc's: it closes with close(), and passes everything else
   to the kernel. Linked into every test program of a build with the thread sanitizer, x86-64 only. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { largest_error = 4095 };

/* Not instrumented: a call of the sanitizer between the lines below would lose what is in the registers. */
__attribute__((no_sanitize("thread"))) long syscall(long number, ...) {
  va_list all;
  va_start(all, number);
  const long a0 = va_arg(all, long), a1 = va_arg(all, long), a2 = va_arg(all, long);
  const long a3 = va_arg(all, long), a4 = va_arg(all, long), a5 = va_arg(all, long);
  va_end(all);
  if (number == SYS_close) return close((int)a0);
  long result;
  register long r10 __asm__("r10") = a3;
  register long r8 __asm__("r8") = a4;
  register long r9 __asm__("r9") = a5;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a0), "S"(a1), "d"(a2), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result < 0 && result >= -largest_error) {
    errno = (int)-result;
    return -1;
  }
  return result;
}
