package snapshot

// Hang makes the file system hang, as far as the directory is concerned, until release is called.
func (d *Dir) Hang() (release func()) {
	answer := make(chan struct{})
	d.disk.calls <- diskCall{func() error { <-answer; return nil }, make(chan error, 1)}
	return func() { close(answer) }
}
