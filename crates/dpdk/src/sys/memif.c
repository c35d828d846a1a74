/* A correction of the memif driver. build.rs renames the driver's calls of sendmsg to the function below. */
#include <stddef.h>
#include <sys/socket.h>

/* Sends a message of the memif protocol, and reports success even if sending failed. After a failure, it shuts
 * the socket down. The driver then finds the end of the connection in its interrupt handler and closes the
 * connection there.
 *
 * The reason is how DPDK 22.11 to 26.07 handle a failure to send the first message, HELLO. The driver closes the
 * socket, but leaves it registered with the interrupt thread. That thread cannot watch the closed descriptor and
 * ends the process. So a client that connected and closed at once ended the server.
 *
 * The call does not block, because the interrupt thread serves all connections. A peer has at most a few
 * unread messages if it follows the protocol, so a full socket is a failure, too. */
ssize_t inlane_memif_sendmsg(int socket, const struct msghdr *message, int flags)
{
	size_t length = 0;

	for (size_t i = 0; i < message->msg_iovlen; i++)
		length += message->msg_iov[i].iov_len;
	if (sendmsg(socket, message, flags | MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)length)
		shutdown(socket, SHUT_RDWR);
	return (ssize_t)length;
}
