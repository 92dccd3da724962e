package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"
)

// client is one connection that speaks just enough HTTP/1.1 to send a prepared request and read an answer to its end. It is
// written by hand because driver and upstream share a core: with net/http they would be the bottleneck, and not what is
// measured.
type client struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(addr string) (*client, error) {
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &client{conn: c, r: bufio.NewReaderSize(c, 32<<10)}, nil
}

func (c *client) close() { _ = c.conn.Close() }

// patience bounds one exchange, so that a hung gateway ends the run.
const patience = 30 * time.Second

// do sends the request and reads the whole answer; anything but a complete 200 is an error.
func (c *client) do(request []byte) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	length, err := c.head()
	if err != nil {
		return err
	}
	if length >= 0 {
		_, err := c.r.Discard(length)
		return err
	}
	for {
		n, err := c.chunk()
		if err != nil {
			return err
		}
		if _, err := c.r.Discard(n + len("\r\n")); err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
	}
}

// leave sends the request, reads the first few events of the answer and returns in the middle of it.
func (c *client) leave(request []byte) error {
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	if length, err := c.head(); err != nil || length >= 0 {
		return errors.Join(err, errors.New("expected a stream"))
	}
	for read := 0; read < 1000; { // about eight events
		n, err := c.chunk()
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("the stream ended before the client could hang up")
		}
		if _, err := c.r.Discard(n + len("\r\n")); err != nil {
			return err
		}
		read += n
	}
	return nil
}

// head reads the response's head and returns the length of its body, -1 when it comes in chunks.
func (c *client) head() (int, error) {
	line, err := c.line()
	if err != nil {
		return 0, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 200")) {
		rest, _ := c.r.Peek(c.r.Buffered())
		return 0, fmt.Errorf("answered %q\n%s", line, rest)
	}
	length := 0
	for {
		if line, err = c.line(); err != nil {
			return 0, err
		}
		if len(line) == 0 {
			return length, nil
		}
		switch name, value, _ := bytes.Cut(line, []byte(":")); {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, err
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			length = -1
		}
	}
}

func (c *client) chunk() (int, error) {
	line, err := c.line()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(line), 16, 32)
	return int(n), err
}

// line reads up to the next CRLF; the result is valid until the next read.
func (c *client) line() ([]byte, error) {
	b, err := c.r.ReadSlice('\n')
	return bytes.TrimRight(b, "\r\n"), err
}
