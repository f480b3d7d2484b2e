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

enum { arguments = 6, largest_error = 4095 };

long syscall(long number, ...) {
  va_list all;
  va_start(all, number);
  long a[arguments];
  for (int i = 0; i < arguments; ++i) a[i] = va_arg(all, long);
  va_end(all);
  if (number == SYS_close) return close((int)a[0]);
  register long r10 __asm__("r10") = a[3];
  register long r8 __asm__("r8") = a[4];
  register long r9 __asm__("r9") = a[5];
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result < 0 && result >= -largest_error) {
    errno = (int)-result;
    return -1;
  }
  return result;
}
