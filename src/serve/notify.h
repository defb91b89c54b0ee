/* systemd's notification protocol (sd_notify(3)): datagrams to the socket that $NOTIFY_SOCKET names. Without it nothing
 * happens. */
#ifndef PS_NOTIFY_H
#define PS_NOTIFY_H

#include "base/base.h"

void notify_send(const char *text); /* "READY=1", "STOPPING=1", "WATCHDOG=1" */
/* How often a watchdog wants to hear from this process, or 0. */
u32 notify_watchdog_ms(void);

#endif
